"""Operators that copy without arithmetic: embedding, gather, scatter, parts of rows, permutations and repetitions.

Their kernels copy elements as words of 2 or 4 bytes; a block copies one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.kernels._loops import broadcast_strides, joined_loops, loops_argument, row_major_strides
from aethermind_cuda.launch import Call, DeviceArray, Int64, Launch

__all__ = ["KERNELS", "permute_heads", "transpose"]

_VECTOR_BYTES = 16
_TILE = 32
_STRIDED_PER_BLOCK = 1024
_MAX_BLOCKS = 1 << 16
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


def _matrix(x: DeviceArray, width: int, first: int = 0) -> DeviceArray:
    """Rows of `width` elements, beginning at a column."""
    address = x.address + first * x.dtype.itemsize
    return DeviceArray(address, x.dtype, (x.size // width if width else 0, width))


def _copy_columns(out: DeviceArray, x: DeviceArray, width: int) -> Launch:
    copied = x._replace(shape=(x.shape[0], width))
    return _launch("copy_columns", x.shape[0], copied, out, x, out.shape[1], x.shape[1], width)


def _select(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    _, num_vectors, width = x.shape
    source = _matrix(x, num_vectors * width, int(call.attributes["index"]) * width)
    yield _copy_columns(_matrix(out, width), source, width)


def _slice_last(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    width = out.shape[-1]
    yield _copy_columns(_matrix(out, width), _matrix(x, x.shape[-1], int(call.attributes["begin"])), width)


def _concat(num_dims: int) -> Callable[[Call], Iterator[Launch]]:
    """Copy the last dims of every input, side by side."""

    def launches(call: Call) -> Iterator[Launch]:
        (out,) = call.outputs
        out_width, first = prod(out.shape[-num_dims:]), 0
        for part in call.inputs:
            assert part is not None
            width = prod(part.shape[-num_dims:])
            yield _copy_columns(_matrix(out, out_width, first), _matrix(part, width), width)
            first += width

    return launches


def _permute_heads(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield permute_heads(out, x)


def permute_heads(out: DeviceArray, x: DeviceArray) -> Launch:
    """out[…, columns, rows, width] of x[…, rows, columns, width]."""
    return _launch("permute_heads", prod(x.shape[:-1]) if x.size else 0, out, out, x, *x.shape[-3:])


def _permute(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    assert x is not None
    strides = row_major_strides(x.shape)
    yield _copy_strided(call.outputs[0], x, [strides[dim] for dim in call.attributes["dims"]])


def _expand(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (out,) = call.outputs
    assert x is not None
    yield _copy_strided(out, x, broadcast_strides(x.shape, out.shape))


def _copy_strided(out: DeviceArray, x: DeviceArray, strides: Sequence[int]) -> Launch:
    """Copy the elements of x that are these strides apart in the dims of `out`."""
    loops = loops_argument(joined_loops(out.shape, strides))
    blocks = min(_MAX_BLOCKS, div_up(out.size, _STRIDED_PER_BLOCK))
    arguments = (out, x, Int64(out.size), loops)
    return Launch("rows", f"rows_copy_strided_{_word(x)}", (blocks, 1, 1), (256, 1, 1), arguments)


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
    cuda_kernel("concat", _concat(2)),
    cuda_kernel("concat_last", _concat(1)),
    cuda_kernel("embedding", _embedding),
    cuda_kernel("expand", _expand),
    cuda_kernel("gather_rows", _gather_rows),
    cuda_kernel("permute", _permute),
    cuda_kernel("permute_heads", _permute_heads),
    cuda_kernel("position_embedding", _position_embedding),
    cuda_kernel("scatter_rows", _scatter_rows),
    cuda_kernel("select", _select),
    cuda_kernel("slice_last", _slice_last),
    cuda_kernel("take_experts", _take_experts),
    cuda_kernel("transpose", _transpose),
)
