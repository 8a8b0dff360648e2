"""K-quants: scales and offsets of blocks as integers times scales of super-blocks, for blocks of either sign."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import scaled

from aethermind.ops.quantization import fake_quantize
from aethermind.ops.weight_format import WeightFormat, parse_format, without_super_blocks
from aethermind.plugins import DeprecatedUseWarning

Array = np.ndarray[Any, Any]


def format_of(name: str) -> WeightFormat:
    found = parse_format(name)
    assert found is not None
    return found


FORMAT = format_of("int4_k")


def normal(rows: int, columns: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) * 0.02).astype(np.float32)


def error(array: Array, values: Array) -> float:
    return float(np.linalg.norm(values - array) / np.linalg.norm(array))


def test_normal_weights_lose_no_more_than_in_q4_k() -> None:
    """0.0715 is what llama.cpp's Q4_K of the same size leaves: `tests/bench/compare_quality.py --normal --ggml …`."""
    array = normal(16, 4096)
    assert error(array, fake_quantize(FORMAT, array)) < 0.0715
    assert error(array, fake_quantize(format_of("int4_offset"), array)) > 0.0715, "which takes half a bit more"


@pytest.mark.parametrize("columns", [256, 320, 896])
def test_sub_scales_are_at_most_63_and_reach_the_widest_block(columns: int) -> None:
    array = normal(5, columns)
    array[:, 32:64] *= 50
    q = FORMAT.quantize(array)
    assert q.super_block_scales is not None
    assert q.offsets is not None
    assert (q.scales <= 63).all()
    assert (q.offsets <= 63).all()
    assert (q.super_block_scales[..., 1] < 0).all()
    assert np.abs(fake_quantize(FORMAT, array) - array)[:, 32:64].max() < np.abs(array).max() / 10


@given(st.integers(0, 2**32 - 1), st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None, max_examples=scaled(6000))
def test_blocks_of_either_sign_live_side_by_side(seed: int, sign: float, share: float) -> None:
    """Every value is met within a twelfth of the super-block's range, zero included.

    Half of 15 steps is a thirtieth; clipping for the sake of the others, and units of a 63rd, add to it.
    """
    rng = np.random.default_rng(seed)
    array = rng.standard_normal((2, 300)).astype(np.float32)
    moved = rng.random((2, 10)) < share
    array += np.repeat(np.where(moved, np.float32(4 * sign), np.float32(0)), 32, axis=1)[:, :300]
    for begin in (0, 256):
        part = array[:, begin : begin + 256]
        extent = np.maximum(part.max(1), 0) - np.minimum(part.min(1), 0)
        off = np.abs(fake_quantize(FORMAT, array)[:, begin : begin + 256] - part).max(1)
        assert (off <= extent / 12).all()


def test_one_level_is_the_same_to_float16() -> None:
    q = FORMAT.quantize(normal(7, 600))
    one = without_super_blocks(q)
    assert one.format == format_of("int4_offset")
    values = FORMAT.dequantize(q)
    np.testing.assert_allclose(one.format.dequantize(one), values, rtol=0, atol=2.0**-10 * np.abs(values).max())
    np.testing.assert_array_equal(one.codes, q.codes)


def test_former_names_of_fields_work() -> None:
    with pytest.warns(DeprecatedUseWarning, match="super_block_size"):
        assert FORMAT.super_block == 256  # type: ignore[attr-defined]
    weight = FORMAT.quantize(np.ones((1, 256), np.float32))
    with pytest.warns(DeprecatedUseWarning, match="super_block_scales"):
        assert weight.units is weight.super_block_scales  # type: ignore[attr-defined]
