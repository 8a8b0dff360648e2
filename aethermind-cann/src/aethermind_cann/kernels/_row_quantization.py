"""Per-row quantisation to int8 or float8, identical to `aethermind.ops.catalog._quantized_rows`.

float8_e4m3fn values are stored as uint8, because these NPUs lack the type; a table has the value of each byte.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["quantized", "unscaled_values"]

_LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}
_SMALLEST = 2.0**-100
"""Rows whose largest magnitude is below this are stored as zeros."""
_SIGN = 128


def quantized(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows [..., C]: returns quantised values of x's shape and float32 scales [...]."""
    rows = x.float()
    largest = rows.abs().amax(-1)
    is_finite = largest < torch.inf  # also false for NaN, which amax propagates
    has_codes = is_finite & (largest >= _SMALLEST)
    divisor = torch.where(has_codes, largest, 1.0)
    # torch computes number / tensor as a product with the reciprocal, which rounds twice.
    inverse = torch.where(has_codes, torch.full_like(divisor, _LARGEST[dtype]) / divisor, 0.0)
    scaled = torch.where(has_codes[..., None], rows, 0.0) * inverse[..., None]
    codes = scaled.round().to(torch.int8) if dtype == torch.int8 else _float8_codes(scaled)
    scales = torch.where(has_codes, largest / _LARGEST[dtype], 0.0)
    return codes, torch.where(is_finite, scales, torch.nan)


def unscaled_values(codes: torch.Tensor) -> torch.Tensor:
    """Convert quantised values to float32, without their scales."""
    if codes.dtype == torch.int8:
        return codes.float()
    return _float8_values(codes.device).index_select(0, codes.reshape(-1).int()).reshape(codes.shape)


def _float8_codes(x: torch.Tensor) -> torch.Tensor:
    """Round finite elements to the nearest float8 value, ties to even; returns its byte."""
    halfways = _float8_halfways(x.device)
    magnitude = x.abs()
    below = torch.searchsorted(halfways, magnitude)
    is_tie = halfways.index_select(0, below.reshape(-1).clamp(max=len(halfways) - 1)).reshape(x.shape) == magnitude
    nearest = below + (is_tie & (below % 2 == 1)).long()
    return (nearest + (x < 0).long() * _SIGN).to(torch.uint8)


@cache
def _float8_values(device: torch.device) -> torch.Tensor:
    """Return the table of the values of all 256 bytes."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)


@cache
def _float8_halfways(device: torch.device) -> torch.Tensor:
    """Return the midpoints of adjacent non-negative float8 values, NaN (byte 127) excluded."""
    values = torch.arange(_SIGN - 1, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return ((values[1:] + values[:-1]) / 2).to(device)
