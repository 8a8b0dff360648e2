"""Reductions: sum, mean, prod, max, min and argmax over dims, and softmax over the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from aethermind.ops.shape_inference import positive_dims
from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.kernels._loops import Loop, joined_loops, loops_argument, row_major_strides
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_ADDITIONS = frozenset({"dim", "keepdim"})
_COLUMNS = 32
_COLUMN_THREADS = 256


def _rows(source: str, entry: str, out: DeviceArray, x: DeviceArray, width: int) -> Launch:
    """A block for each of the rows of `width` elements."""
    num_rows = out.size if out.shape != x.shape else x.size // max(1, width)
    return Launch(source, f"{entry}_{x.dtype}", (num_rows, 1, 1), (threads_for(width), 1, 1), (out, x, width))


def _reduction(name: str) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        (x,) = call.inputs
        (out,) = call.outputs
        assert x is not None
        dims = call.attributes["dim"]
        reduced = positive_dims(dims, len(x.shape)) if dims else range(len(x.shape))
        count = prod(x.shape[dim] for dim in reduced)
        loops = _loops(x.shape, [dim in reduced for dim in range(len(x.shape))])
        if count == 0 or loops in ([], [(Loop(count, (1,)), True)]) or _are_rows(loops, count):
            yield _rows("reductions", f"reductions_{name}", out, x._replace(shape=(out.size, count)), count)
            return
        kept, elements = ([loop for loop, is_reduced in loops if is_reduced == wanted] for wanted in (False, True))
        arguments = loops_argument(kept), loops_argument(elements)
        entry, divisor = ("sum", float(count)) if name == "mean" else (name, 1.0)
        if loops[-1][1]:
            kernel, block = f"reductions_{entry}_dims_{x.dtype}", threads_for(count)
            yield Launch("reductions", kernel, (out.size, 1, 1), (block, 1, 1), (out, x, *arguments, count, divisor))
        else:
            kernel, grid = f"reductions_{entry}_columns_{x.dtype}", div_up(out.size, _COLUMNS)
            sizes = (out.size, count, divisor)
            yield Launch("reductions", kernel, (grid, 1, 1), (_COLUMN_THREADS, 1, 1), (out, x, *arguments, *sizes))

    return launches


def _loops(shape: tuple[int, ...], is_reduced: list[bool]) -> list[tuple[Loop, bool]]:
    """The joined loops over x, each with whether it is reduced."""
    kept = [1 if reduced else size for size, reduced in zip(shape, is_reduced, strict=True)]
    strides = (0 if reduced else stride for stride, reduced in zip(row_major_strides(kept), is_reduced, strict=True))
    loops = joined_loops(shape, row_major_strides(shape), list(strides))
    return [(Loop(loop.size, loop.strides[:1]), loop.strides[1] == 0) for loop in loops]


def _are_rows(loops: list[tuple[Loop, bool]], count: int) -> bool:
    """Whether rows of `count` adjacent elements are reduced."""
    return len(loops) == 2 and loops[-1] == (Loop(count, (1,)), True)


def _argmax(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    (index,) = call.outputs
    assert x is not None
    (dim,) = positive_dims(call.attributes["dim"], len(x.shape))
    width, inner = x.shape[dim], prod(x.shape[dim + 1 :])
    if inner == 1:
        yield _rows("argmax", "argmax", index, x._replace(shape=(index.size, width)), width)
        return
    grid, arguments = div_up(index.size, _COLUMNS), (index, x, index.size, width, inner)
    yield Launch("argmax", f"argmax_columns_{x.dtype}", (grid, 1, 1), (_COLUMN_THREADS, 1, 1), arguments)


def _softmax(call: Call) -> Iterator[Launch]:
    (x,) = call.inputs
    assert x is not None
    yield _rows("softmax", "softmax", call.outputs[0], x, x.shape[-1])


KERNELS = (
    *(cuda_kernel(name, _reduction(name), additions=_ADDITIONS) for name in ("sum", "mean", "prod", "max", "min")),
    cuda_kernel("argmax", _argmax, additions=_ADDITIONS),
    cuda_kernel("softmax", _softmax),
)
