"""KVCacheSpec: bytes counted by hand."""

from __future__ import annotations

import pytest

from aethermind.cache import KVCacheSpec
from aethermind.cache.layers import Paged, Shared, Window
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("dtype_name", "bytes_per_value"),
    [("float32", 4), ("bfloat16", 2), ("float16", 2), ("float8_e4m3fn", 1), ("int8", 1), ("int4", 0.5)],
)
def test_bytes(dtype_name: str, bytes_per_value: float) -> None:
    spec = KVCacheSpec.uniform(24, 2, 64, dtype_name, 16)
    assert spec.bytes_per_token == 2 * 24 * 2 * 64 * bytes_per_value
    assert spec.bytes_per_block == 16 * spec.bytes_per_token


def test_scales_are_counted() -> None:
    spec = KVCacheSpec.uniform(24, 2, 64, "int8", 16, scale_bits=32)
    assert spec.bytes_per_token == 2 * 24 * 2 * (64 + 4)


def test_layers_of_any_shape_are_counted() -> None:
    layers = (Paged(2, 64, 64), Window(1, 128, 32, 8), Shared(0), Paged(3, 16, 8))
    assert KVCacheSpec(layers, "bfloat16", 16).bytes_per_token == 2 * (2 * 64 * 2 + (128 + 32) + 3 * (16 + 8))
    assert KVCacheSpec(layers, "int8", 16, 32).bytes_per_token == 2 * 2 * 68 + (132 + 36) + 3 * (20 + 12)


@pytest.mark.parametrize("shared", [1, 2, -1])
def test_a_layer_shares_an_earlier_one_that_has_a_cache(shared: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Layer 2 shares the cache of layer {shared}"):
        KVCacheSpec((Paged(1, 8, 8), Shared(0), Shared(shared)), "float32", 16)


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for_tokens(num_tokens: int, num_blocks: int) -> None:
    assert KVCacheSpec.uniform(1, 1, 8, "float32", 16).num_blocks_for(num_tokens) == num_blocks


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="key_dim of a layer's cache is 0"):
        KVCacheSpec.uniform(1, 1, 0, "float32", 16)
    with pytest.raises(InvalidArgumentError, match="0 layers in blocks of 16 tokens"):
        KVCacheSpec.uniform(0, 1, 8, "float32", 16)
    with pytest.raises(InvalidArgumentError, match="'half' has no width"):
        KVCacheSpec.uniform(1, 1, 8, "half", 16)
