"""Conversion of element types to torch dtypes."""

from __future__ import annotations

import torch

from aethermind.hal.dtype import DType

__all__ = ["torch_dtype"]


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch dtype of the same name; for float8, uint8 with the same bits, because NPUs lack the type."""
    if dtype is DType.FLOAT8_E4M3FN:
        return torch.uint8
    found: torch.dtype = getattr(torch, dtype.label)
    return found
