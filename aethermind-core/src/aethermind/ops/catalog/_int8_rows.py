"""Rows of floats as int8 codes with one scale each: what the int8 KV cache holds of a head of a token."""

from __future__ import annotations

import numpy as np

from aethermind.ops.operator import Array

__all__ = ["coded_caches", "quantize_rows"]

_SMALLEST = np.float32(2.0**-100)


def quantize_rows(x: Array) -> tuple[Array, Array]:
    """Codes (int8, as x) and scales (float32, one a row [..., C]) with x ≈ scale · code.

    Symmetric: the scale is the largest magnitude of the row over 127, and codes are x · (127 / largest), rounded half
    to even. All of it is float32, so that kernels find the same codes. A row below 2^-100 is zero; the scale of one
    that is not finite is NaN.
    """
    rows = np.asarray(x, dtype=np.float32)
    largest = np.abs(rows).max(axis=-1, initial=0)
    is_finite = np.isfinite(rows).all(axis=-1)
    has_codes = is_finite & (largest >= _SMALLEST)
    inverse = np.where(has_codes, np.float32(127) / np.where(has_codes, largest, 1), 0).astype(np.float32)
    codes = np.rint(np.where(has_codes[..., None], rows, 0) * inverse[..., None]).astype(np.int8)
    scales = np.where(is_finite, np.where(has_codes, largest / np.float32(127), 0), np.nan)
    return codes, scales.astype(np.float32)


def coded_caches(k_cache: Array | None, v_cache: Array | None) -> tuple[Array, Array, Array, Array]:
    """The caches of a sample as codes, and their scales in float64, as samples have floats."""
    (k_codes, k_scale), (v_codes, v_scale) = quantize_rows(k_cache), quantize_rows(v_cache)
    return k_codes, v_codes, k_scale.astype(np.float64), v_scale.astype(np.float64)
