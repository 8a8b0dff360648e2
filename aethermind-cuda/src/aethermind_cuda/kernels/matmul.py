"""matmul of activations: a block computes a 64 × 64 tile."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_TILE = 64
_MAX_GRID_Z = 65535
"""Limit of gridDim.z."""


def _launches(call: Call) -> Iterator[Launch]:
    a, b = call.inputs
    (out,) = call.outputs
    assert a is not None
    assert b is not None
    (num_rows, num_inner), num_columns = a.shape[-2:], b.shape[-1]
    num_matrices = prod(out.shape[:-2])
    for first in range(0, num_matrices, _MAX_GRID_Z):
        grid = div_up(num_columns, _TILE), div_up(num_rows, _TILE), min(_MAX_GRID_Z, num_matrices - first)
        arguments = (*(_from_matrix(array, first) for array in (out, a, b)), num_rows, num_inner, num_columns)
        yield Launch("matmul", f"matmul_{out.dtype}", grid, (256, 1, 1), arguments)


def _from_matrix(array: DeviceArray, first: int) -> DeviceArray:
    return array._replace(address=array.address + first * prod(array.shape[-2:]) * array.dtype.itemsize)


KERNELS = (cuda_kernel("matmul", _launches),)
