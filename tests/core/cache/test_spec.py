"""KVCacheSpec: bytes counted by hand."""

from __future__ import annotations

import pytest

from aethermind.cache import KVCacheSpec
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("dtype_name", "bytes_per_value"),
    [("float32", 4), ("bfloat16", 2), ("float16", 2), ("float8_e4m3fn", 1), ("int8", 1), ("int4", 0.5)],
)
def test_bytes(dtype_name: str, bytes_per_value: float) -> None:
    spec = KVCacheSpec(24, 2, 64, dtype_name, 16)
    assert spec.bytes_per_token == 2 * 24 * 2 * 64 * bytes_per_value
    assert spec.bytes_per_block == 16 * spec.bytes_per_token


def test_scales_are_counted() -> None:
    spec = KVCacheSpec(24, 2, 64, "int8", 16, scale_bits=32)
    assert spec.bytes_per_token == 2 * 24 * 2 * (64 + 4)


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for_tokens(num_tokens: int, num_blocks: int) -> None:
    assert KVCacheSpec(1, 1, 8, "float32", 16).num_blocks_for(num_tokens) == num_blocks


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="head_dim of a KV cache is 0"):
        KVCacheSpec(1, 1, 0, "float32", 16)
    with pytest.raises(InvalidArgumentError, match="'half' has no width"):
        KVCacheSpec(1, 1, 8, "half", 16)
