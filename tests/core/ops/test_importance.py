"""Quantisation with an importance matrix: less weighted error than without, and the same codes where all is equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aethermind.ops.quantization import QuantizedArrays, encode
from aethermind.ops.super_blocks import encode_super_blocks
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(2)
WEIGHTS = (RNG.standard_normal((24, 512)) * 0.02).astype(np.float32)
IMPORTANCE = np.exp(1.5 * RNG.standard_normal(512)).astype(np.float32)
SEARCHED = (
    "int4",
    "int4_g128",
    "int4_channel",
    "int4_zp",
    "int4_zp_g64",
    "int4_offset",
    "int4_offset_g64",
    "int4_k",
    "int2",
)


def format_of(name: str) -> WeightFormat:
    found = parse_format(name)
    assert found is not None
    return found


def quantised(name: str, importance: Array | None, weights: Array = WEIGHTS) -> QuantizedWeight:
    format = format_of(name)
    found: QuantizedArrays = (encode_super_blocks if format.super_block_size else encode)(format, weights, importance)
    return QuantizedWeight(format, *found)


def weighted_error(weight: QuantizedWeight) -> float:
    errors = weight.format.dequantize(weight).astype(np.float64) - WEIGHTS
    return float((errors * errors * IMPORTANCE).sum())


@pytest.mark.parametrize("name", SEARCHED)
def test_importance_lowers_the_error_that_it_weighs(name: str) -> None:
    assert weighted_error(quantised(name, IMPORTANCE)) < 0.98 * weighted_error(quantised(name, None))


@pytest.mark.parametrize("name", [*SEARCHED, "int8", "int1"])
@pytest.mark.parametrize("columns", [512, 300])
def test_equal_importance_is_none(name: str, columns: int) -> None:
    weights = WEIGHTS[:, :columns]
    with_ones, without = (quantised(name, one, weights) for one in (np.ones(columns, np.float32), None))
    for part in ("codes", "scales", "zeros", "offsets", "super_block_scales"):
        np.testing.assert_array_equal(getattr(with_ones, part), getattr(without, part))


@pytest.mark.parametrize("name", SEARCHED)
def test_channels_without_any_importance_are_finite(name: str) -> None:
    weight = quantised(name, np.zeros(512, np.float32))
    assert np.isfinite(weight.format.dequantize(weight)).all()
