"""The format mxfp4 against the types of ml_dtypes, which has the elements and scales of OCP's specification."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import float4_e2m1fn, float8_e8m0fnu

from aethermind.errors import InvalidArgumentError
from aethermind.ops.float_formats import check_scales
from aethermind.ops.weight_format import MXFP4, QuantizedWeight, parse_format

RNG = np.random.default_rng(7)


def test_every_code_under_every_scale_has_its_value() -> None:
    scales = np.arange(253, dtype=np.uint8)[:, None]
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (len(scales), 1))
    found = MXFP4.dequantize(QuantizedWeight(MXFP4, codes, scales), "float64")
    expected = codes.view(float4_e2m1fn).astype(np.float64) * scales.view(float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(7, 96), (3, 37), (1, 1), (0, 32), (2, 0)])
def test_values_are_rounded_as_the_specification_says(shape: tuple[int, int]) -> None:
    rows, columns = shape
    # multiples of a quarter of a step hit the middle between two elements often
    values = (RNG.integers(-30, 31, shape) / 4 * 2.0 ** RNG.integers(-9, 9, (rows, 1))).astype(np.float32)
    weight = MXFP4.quantize(values)
    for begin in range(0, columns, 32):
        block = values[:, begin : begin + 32]
        largest = np.abs(block).max(axis=1, initial=0)
        scale = 2.0 ** (np.floor(np.log2(np.where(largest > 0, largest, 1))) - 2)
        expected = (np.clip(block / scale[:, None], -6, 6)).astype(float4_e2m1fn).astype(np.float64) * scale[:, None]
        np.testing.assert_array_equal(MXFP4.dequantize(weight)[:, begin : begin + 32], expected)


def test_what_the_format_holds_is_unchanged() -> None:
    codes = RNG.integers(0, 16, (5, 64), np.uint8)
    codes[:, ::32] = 7  # the largest magnitude, so that the scale is the same
    weight = QuantizedWeight(MXFP4, codes, RNG.integers(3, 250, (5, 2), np.uint8))
    again = MXFP4.quantize(MXFP4.dequantize(weight))
    np.testing.assert_array_equal(again.codes, weight.codes)
    np.testing.assert_array_equal(again.scales, weight.scales)


def test_sizes() -> None:
    assert parse_format("mxfp4") is MXFP4
    assert MXFP4.nbytes((3, 64)) == 3 * (32 + 2)
    assert MXFP4.nbytes((2, 33)) == 2 * (17 + 2)
    assert MXFP4.bits_per_weight((4, 2880)) == 4.25


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="not finite cannot be stored as mxfp4"):
        MXFP4.quantize(np.full((1, 32), value, np.float32))


@pytest.mark.parametrize("scale", [253, 255])
def test_scales_that_are_no_numbers_are_refused(scale: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"scale of {scale} cannot be read"):
        check_scales(np.array([[0, scale]], np.uint8))
