"""Element types as torch names them, which is as the core does."""

from __future__ import annotations

import torch

from aethermind.hal.dtype import DType

__all__ = ["torch_dtype"]


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of the same name."""
    found: torch.dtype = getattr(torch, dtype.label)
    return found
