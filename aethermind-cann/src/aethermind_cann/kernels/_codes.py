"""Rows of floats as codes of one byte with a scale each, as `aethermind.ops.catalog._quantized_rows` finds them.

A tensor of float8_e4m3fn is one of uint8 here: these NPUs do not have the type, so its values are looked up.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["quantized", "values_of"]

_LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}
_SMALLEST = 2.0**-100
"""A row below this is zero."""
_SIGN = 128


def quantized(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, as x, and float32 scales, one a row [..., C]."""
    rows = x.float()
    largest = rows.abs().amax(-1)
    is_finite = largest < torch.inf  # false for NaN as well, which amax passes on
    has_codes = is_finite & (largest >= _SMALLEST)
    divisor = torch.where(has_codes, largest, 1.0)
    # A number divided by a tensor is a product with its reciprocal to torch, and rounds twice.
    inverse = torch.where(has_codes, torch.full_like(divisor, _LARGEST[dtype]) / divisor, 0.0)
    scaled = torch.where(has_codes[..., None], rows, 0.0) * inverse[..., None]
    codes = scaled.round().to(torch.int8) if dtype == torch.int8 else _float8_codes(scaled)
    scales = torch.where(has_codes, largest / _LARGEST[dtype], 0.0)
    return codes, torch.where(is_finite, scales, torch.nan)


def values_of(codes: torch.Tensor) -> torch.Tensor:
    """What codes stand for before their scale, in float32."""
    if codes.dtype == torch.int8:
        return codes.float()
    return _float8_values(codes.device).index_select(0, codes.reshape(-1).int()).reshape(codes.shape)


def _float8_codes(x: torch.Tensor) -> torch.Tensor:
    """The nearest code of each finite element up to the largest, ties to even."""
    halfways = _float8_halfways(x.device)
    magnitude = x.abs()
    below = torch.searchsorted(halfways, magnitude)
    is_tie = halfways.index_select(0, below.reshape(-1).clamp(max=len(halfways) - 1)).reshape(x.shape) == magnitude
    nearest = below + (is_tie & (below % 2 == 1)).long()
    return (nearest + (x < 0).long() * _SIGN).to(torch.uint8)


@cache
def _float8_values(device: torch.device) -> torch.Tensor:
    """The value of each of the 256 codes."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)


@cache
def _float8_halfways(device: torch.device) -> torch.Tensor:
    """What lies halfway between neighbours that are not negative; the last code before the sign is NaN."""
    values = torch.arange(_SIGN - 1, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return ((values[1:] + values[:-1]) / 2).to(device)
