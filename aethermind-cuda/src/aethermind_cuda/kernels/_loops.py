"""Nested loops over dims as an argument of kernels: `Loops` of csrc/common/loops.cuh."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

__all__ = ["Loop", "broadcast_strides", "joined_loops", "loops_argument", "row_major_strides"]

_MAX_DIMS = 6


class Loop(NamedTuple):
    """One loop: its length, and for each array the stride in elements, 0 where the array is repeated."""

    size: int
    strides: tuple[int, ...]


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major array."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def broadcast_strides(shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major array seen in another shape: aligned at the last dims, 0 where it is repeated."""
    strides = (0 if size == 1 else stride for size, stride in zip(shape, row_major_strides(shape), strict=True))
    return (0,) * (len(wanted) - len(shape)) + tuple(strides)


def joined_loops(shape: Sequence[int], *strides: Sequence[int]) -> list[Loop]:
    """The loops over a shape without dims of 1, adjacent ones joined where every array is contiguous over both."""
    loops: list[Loop] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if loops and all(outer == step * size for outer, step in zip(loops[-1].strides, steps, strict=True)):
            loops[-1] = Loop(loops[-1].size * size, tuple(steps))
        else:
            loops.append(Loop(size, tuple(steps)))
    return loops


def loops_argument(loops: Sequence[Loop], num_arrays: int = 1) -> Any:
    """The structure of loops, of which `num_arrays` strides are used."""
    argument = _structure(num_arrays)()
    argument.count = len(loops)
    for position, loop in enumerate(loops):
        argument.size[position] = loop.size
        for array in range(num_arrays):
            argument.stride[array][position] = loop.strides[array]
    return argument


@cache
def _structure(num_arrays: int) -> type[Any]:
    fields = [
        ("count", ctypes.c_int),
        ("size", ctypes.c_int * _MAX_DIMS),
        ("stride", ctypes.c_int64 * _MAX_DIMS * num_arrays),
    ]
    return type("Loops", (ctypes.Structure,), {"_fields_": fields})
