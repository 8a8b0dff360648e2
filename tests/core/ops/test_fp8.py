"""The format fp8 against ml_dtypes, which has the elements of OCP's specification, and torch's conversion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aethermind.errors import InvalidArgumentError
from aethermind.hal import DType
from aethermind.ops.weight_format import FP8, QuantizedWeight, parse_format

CODES = DType.FLOAT8_E4M3FN.numpy
RNG = np.random.default_rng(8)


def test_every_code_has_its_value_times_the_scale_of_its_row() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8).view(CODES), (3, 1))
    scales = np.array([[1.0], [0.3], [2.0**-20]], np.float32)
    found = FP8.dequantize(QuantizedWeight(FP8, codes, scales))
    expected = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn).float() * torch.from_numpy(scales)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("shape", [(7, 96), (3, 37), (1, 1), (0, 32), (2, 0)])
def test_rows_are_rounded_to_448_steps_of_their_largest_magnitude(shape: tuple[int, int]) -> None:
    values = (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-6, 6, (shape[0], 1))).astype(np.float32)
    weight = FP8.quantize(values)
    largest = torch.from_numpy(np.abs(values).max(axis=1, keepdims=True, initial=0))
    scaled = torch.from_numpy(values) * (448 / largest.clamp_min(1e-30))
    np.testing.assert_array_equal(weight.codes.astype(np.float32), scaled.to(torch.float8_e4m3fn).float().numpy())
    if shape[1]:
        np.testing.assert_array_equal(weight.scales, (largest / 448).numpy())


def test_what_the_format_holds_is_unchanged() -> None:
    codes = RNG.integers(0, 127, (5, 64), np.uint8).view(CODES)
    codes[:, 3] = 448
    weight = QuantizedWeight(FP8, codes, np.exp2(RNG.integers(-9, 9, (5, 1))).astype(np.float32))
    again = FP8.quantize(FP8.dequantize(weight))
    np.testing.assert_array_equal(again.codes, weight.codes)
    np.testing.assert_array_equal(again.scales, weight.scales)


def test_sizes() -> None:
    assert parse_format("fp8") is FP8
    assert FP8.nbytes((3, 64)) == 3 * (64 + 4)
    assert FP8.num_blocks(64) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="not finite cannot be stored as fp8"):
        FP8.quantize(np.full((2, 5), value, np.float32))
