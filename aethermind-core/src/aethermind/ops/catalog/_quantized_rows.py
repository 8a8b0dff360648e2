"""Symmetric 8-bit quantisation of rows with one scale per row, as in a quantised KV cache, where a head is a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.operator import Array
from aethermind.ops.schema import CODE_DTYPES

__all__ = ["codes_and_ties", "dequantize_rows", "one_code_magnitudes", "quantize_rows", "quantized_caches"]

_MIN_MAGNITUDE = np.float32(2.0**-100)
_MAX_CODE = {DType.INT8: np.float32(127), DType.FLOAT8_E4M3FN: np.float32(448)}


def quantize_rows(x: Array, dtype: DType) -> tuple[Array, Array]:
    """Return codes (`dtype`, shaped as x) and scales (float32, one for each row [..., C]) with x ≈ scale · code.

    The scale is the largest magnitude of the row over the largest code (127, or 448 for float8_e4m3fn: OCP 8-bit
    floating point, 2023); codes are x · (largest code / largest magnitude), rounded half to even. All arithmetic is
    float32, so that kernels compute the same codes. A row whose largest magnitude is below 2^-100 becomes zero; a row
    with values that are not finite has the scale NaN.
    """
    rows = np.asarray(x, dtype=np.float32)
    largest = np.abs(rows).max(axis=-1, initial=0)
    is_finite = np.isfinite(rows).all(axis=-1)
    has_codes = is_finite & (largest >= _MIN_MAGNITUDE)
    inverse = np.where(has_codes, _MAX_CODE[dtype] / np.where(has_codes, largest, 1), 0).astype(np.float32)
    scaled = np.where(has_codes[..., None], rows, 0) * inverse[..., None]
    codes = (np.rint(scaled) if dtype is DType.INT8 else scaled).astype(dtype.numpy)
    scales = np.where(is_finite, np.where(has_codes, largest / _MAX_CODE[dtype], 0), np.nan)
    return codes, scales.astype(np.float32)


def dequantize_rows(codes: Array, scales: Array, dtype: np.dtype[np.floating]) -> Array:
    """Return codes [..., C] times their scales [...], in `dtype`."""
    return codes.astype(dtype) * scales[..., None].astype(dtype)


def codes_and_ties(dtype: DType) -> Array:
    """Return all non-negative codes and the midpoints between neighbours (float64), a row whose scale is 1."""
    all_codes = np.arange(128, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    codes = all_codes[np.isfinite(all_codes)]
    return np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])


def one_code_magnitudes(codes: Array) -> Array:
    """Return term magnitudes (float64) with which the tolerance of float32 sums, 1e-5, accepts a neighbouring code."""
    largest_difference = {DType.INT8: 1, DType.FLOAT8_E4M3FN: 32}[DType.of_numpy(codes.dtype)]
    return np.full(codes.shape, 1e5 * largest_difference)


def quantized_caches(
    k_cache: Array | None, v_cache: Array | None
) -> Iterator[tuple[str, tuple[Array, Array, Array, Array]]]:
    """Yield (dtype, (k codes, v codes, k scales, v scales)) of a sample's caches for every code dtype.

    Scales are float64, as all floats of samples.
    """
    for dtype in CODE_DTYPES:
        (k_codes, k_scale), (v_codes, v_scale) = quantize_rows(k_cache, dtype), quantize_rows(v_cache, dtype)
        yield str(dtype), (k_codes, v_codes, k_scale.astype(np.float64), v_scale.astype(np.float64))
