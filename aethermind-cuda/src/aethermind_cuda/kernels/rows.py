"""Operators that copy rows without arithmetic: embedding, gather, scatter, parts of rows and transposes.

Their kernels copy elements as words of 2 or 4 bytes; a block copies one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS", "permute_heads", "transpose"]

_VECTOR_BYTES = 16
_TILE = 32
_MAX_GRID_Z = 65535
"""Limit of gridDim.z."""


def _launch(entry: str, blocks: int, row: DeviceArray, *arguments: DeviceArray | int | None) -> Launch:
    """One block per row; `row` is an array with rows of the length that a block copies."""
    threads = threads_for(row.shape[-1] * row.dtype.itemsize // _VECTOR_BYTES, max_threads=256)
    return Launch("rows", f"rows_{entry}_{_word(row)}", (blocks, 1, 1), (threads, 1, 1), arguments)


def _word(array: DeviceArray) -> str:
    return f"word{8 * array.dtype.itemsize}"


def _embedding(call: Call) -> Iterator[Launch]:
    token_ids, table = call.inputs
    (out,) = call.outputs
    assert token_ids is not None
    assert table is not None
    num_rows, width = table.shape
    threads = threads_for(width * table.dtype.itemsize // _VECTOR_BYTES, max_threads=256)
    arguments = (out, token_ids, table, num_rows, width)
    yield Launch("embedding", f"embedding_{table.dtype}", (token_ids.size, 1, 1), (threads, 1, 1), arguments)


def _gather_rows(call: Call) -> Iterator[Launch]:
    x, rows = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield _launch("gather_rows", out.shape[0], out, out, x, rows, *x.shape)


def _position_embedding(call: Call) -> Iterator[Launch]:
    positions, table = call.inputs
    (out,) = call.outputs
    assert table is not None
    yield _launch("position_embedding", out.shape[0], out, out, table, positions, *table.shape)


def _scatter_rows(call: Call) -> Iterator[Launch]:
    x, values, rows = call.inputs
    (out,) = call.outputs
    assert rows is not None
    yield _launch("scatter_rows", out.shape[0], out, out, x, values, rows, rows.size, out.shape[1])


def _take_experts(call: Call) -> Iterator[Launch]:
    every, ids = call.inputs
    (out,) = call.outputs
    assert every is not None
    assert ids is not None
    num_tokens, num_experts, width = every.shape
    first, count = (int(call.attributes[name]) for name in ("first", "count"))
    sizes = (num_experts, ids.shape[1], first, count, width)
    yield _launch("take_experts", num_tokens * count, out, out, every, ids, *sizes)


def _columns(x: DeviceArray, first: int) -> DeviceArray:
    """The matrix [T, N] of x[T, ...], beginning at a column."""
    return DeviceArray(x.address + first * x.dtype.itemsize, x.dtype, (x.shape[0], prod(x.shape[1:])))


def _copy_columns(out: DeviceArray, x: DeviceArray, width: int) -> Launch:
    copied = x._replace(shape=(x.shape[0], width))
    return _launch("copy_columns", x.shape[0], copied, out, x, out.shape[1], x.shape[1], width)


def _select(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield _copy_columns(out, _columns(x, int(call.attributes["index"]) * x.shape[2]), x.shape[2])


def _concat(call: Call) -> Iterator[Launch]:
    (out,) = call.outputs
    first = 0
    for part in call.inputs:
        assert part is not None
        columns = _columns(part, 0)
        yield _copy_columns(_columns(out, first), columns, columns.shape[1])
        first += columns.shape[1]


def _permute_heads(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield permute_heads(out, x)


def permute_heads(out: DeviceArray, x: DeviceArray) -> Launch:
    """out[…, columns, rows, width] of x[…, rows, columns, width]."""
    return _launch("permute_heads", prod(x.shape[:-1]) if x.size else 0, out, out, x, *x.shape[-3:])


def _transpose(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield from transpose(out, x)


def transpose(out: DeviceArray, x: DeviceArray) -> Iterator[Launch]:
    """out[…, columns, rows] of x[…, rows, columns]."""
    num_rows, num_columns = x.shape[-2:]
    matrix_bytes = num_rows * num_columns * x.dtype.itemsize
    num_matrices = prod(x.shape[:-2])
    for first in range(0, num_matrices, _MAX_GRID_Z):
        grid = div_up(num_columns, _TILE), div_up(num_rows, _TILE), min(_MAX_GRID_Z, num_matrices - first)
        part_out, part_x = (
            DeviceArray(array.address + first * matrix_bytes, array.dtype, array.shape) for array in (out, x)
        )
        yield Launch("rows", f"rows_transpose_{_word(x)}", grid, (256, 1, 1), (part_out, part_x, num_rows, num_columns))


KERNELS = (
    cuda_kernel("concat", _concat),
    cuda_kernel("embedding", _embedding),
    cuda_kernel("gather_rows", _gather_rows),
    cuda_kernel("permute_heads", _permute_heads),
    cuda_kernel("position_embedding", _position_embedding),
    cuda_kernel("scatter_rows", _scatter_rows),
    cuda_kernel("select", _select),
    cuda_kernel("take_experts", _take_experts),
    cuda_kernel("transpose", _transpose),
)
