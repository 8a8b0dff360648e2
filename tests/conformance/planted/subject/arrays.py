"""Arrays as tensors of torch over the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Array", "Attributes", "Inputs", "put", "tensor", "wide"]

Array = Any
Inputs = Sequence[Array]
Attributes = Mapping[str, Any]


def tensor(array: Array) -> torch.Tensor:
    """A tensor over the same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(array)


def wide(array: Array) -> torch.Tensor:
    return tensor(array).float()


def put(output: Array, result: torch.Tensor) -> None:
    tensor(output).copy_(result)
