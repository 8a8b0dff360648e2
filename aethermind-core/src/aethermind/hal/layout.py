"""Shapes and strides of row-major tensors; strides are in elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["align_up", "contiguous_strides", "is_contiguous", "num_elements", "num_spanned"]


def num_elements(shape: Sequence[int]) -> int:
    """The number of elements of a shape (1 for a scalar)."""
    return math.prod(shape)


def num_spanned(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The elements from the first to the last one of a tensor whose strides are not negative, gaps counted."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie in row-major order without gaps; axes of length one may have any stride."""
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def align_up(size: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `size`."""
    return -(-size // alignment) * alignment
