"""Matrices as compressed-tensors stores them: unpacked here by Python's integers, as the format describes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aethermind.checkpoint.compressed_tensors_writer import SCHEMES
from aethermind.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

WEIGHTS = (np.random.default_rng(1).standard_normal((40, 256)) * 0.02).astype(ml_dtypes.bfloat16)
WEIGHTS[3] = 0


def unpacked(packed: Array, bits: int, columns: int) -> Array:
    """Codes of either sign: a row of words is one large integer, its first code in the lowest bits."""
    rows = [int.from_bytes(row.astype("<i4").tobytes(), "little") for row in packed]
    return np.array(
        [[(row >> (bits * i) & ((1 << bits) - 1)) - (1 << (bits - 1)) for i in range(columns)] for row in rows]
    )


@pytest.mark.parametrize("dtype_name", ["BF16", "F32"])
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_values_are_the_nearest_to_the_weights(name: str, dtype_name: str) -> None:
    scheme = SCHEMES[name]
    codes, scales = scheme.encode(WEIGHTS, dtype_name)
    specs = scheme.specs("X.weight", WEIGHTS.shape, dtype_name)
    assert [spec.shape for spec in specs] == [codes.shape, scales.shape]
    assert scales.dtype == (ml_dtypes.bfloat16 if dtype_name == "BF16" else np.float32)
    bits = scheme.format.bits
    if scheme.layout == "pack-quantized":
        assert [spec.name for spec in specs] == ["X.weight_packed", "X.weight_scale"]
        assert codes.dtype == np.int32
        codes = unpacked(codes, bits, 256)
    wide = scales.astype(np.float64)
    values = (codes.astype(np.float64).reshape(40, wide.shape[1], -1) * wide[..., None]).reshape(40, 256)
    errors = np.abs(values - WEIGHTS.astype(np.float64)).reshape(40, wide.shape[1], -1)
    if name == "fp8":  # four significant bits
        assert (
            errors <= np.abs(WEIGHTS.astype(np.float64)).reshape(errors.shape) * 2**-4 + np.abs(wide[..., None]) * 2**-9
        ).all()
    else:
        steps = np.abs(wide[..., None])
        is_clipped = np.isin(codes, [-(1 << (bits - 1)), (1 << (bits - 1)) - 1]).reshape(errors.shape)
        assert (errors <= steps * 0.5001)[~is_clipped].all()
        assert is_clipped.mean() < 0.15
    assert np.linalg.norm(errors) / np.linalg.norm(WEIGHTS.astype(np.float64)) < (0.2 if bits == 4 else 0.04)
    assert not values[3].any()


def test_rows_are_quantised_independently() -> None:
    for scheme in SCHEMES.values():
        whole = scheme.encode(WEIGHTS, "BF16")
        parts = [scheme.encode(WEIGHTS[begin : begin + 7], "BF16") for begin in range(0, 40, 7)]
        for array, pieces in zip(whole, zip(*parts, strict=True), strict=True):
            np.testing.assert_array_equal(array, np.concatenate(pieces))


def test_a_group_size_has_to_divide_the_columns() -> None:
    assert SCHEMES["int4_g128"].why_not_storable((8, 576)) == "576 columns are not a multiple of the group size 128"
    assert not SCHEMES["int4_g64"].why_not_storable((8, 576))
    assert not SCHEMES["int4_channel"].why_not_storable((8, 577))


def test_values_that_are_not_finite_are_refused() -> None:
    for scheme in SCHEMES.values():
        with pytest.raises(InvalidArgumentError, match="not finite"):
            scheme.encode(np.full((1, 128), np.inf, np.float32), "F32")
