"""Shapes of results that depend on whole shapes and on lists of dims: NumPy's and PyTorch's rules.

Schemas name a function over the leading dims, such as `reduce(...)`; it reads the operator's attributes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from aethermind.errors import OperatorError
from aethermind.ops.dims import Dim, Shape, SymDim

__all__ = ["SHAPE_FUNCTIONS", "broadcast", "expand", "known_sizes", "permute", "positive_dims", "reduce", "reshape"]

_KEPT = -1
"""The size in a list of sizes that is inferred by `reshape`, and kept by `expand`."""


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape that both are broadcast to, aligned at their last dims; None if a pair is unequal, none of 1."""
    num_dims = max(len(a), len(b))
    wide_a, wide_b = ((1,) * (num_dims - len(shape)) + shape for shape in (a, b))
    result: list[Dim] = []
    for dim, other in zip(wide_a, wide_b, strict=True):
        if dim != other and dim != 1 and other != 1:
            return None
        result.append(other if dim == 1 else dim)
    return tuple(result)


def positive_dims(dim: int | Sequence[int], num_dims: int) -> tuple[int, ...]:
    """Return dims counted from the first one, in the order given; those below 0 are counted from behind.

    OperatorError for a dim that does not exist or is given twice.
    """
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    for each in dims:
        if not -num_dims <= each < num_dims:
            raise OperatorError(f"Dim {each} is out of range for a tensor of {num_dims} dims.")
    found = tuple(each % num_dims for each in dims)
    if len(set(found)) < len(found):
        raise OperatorError(f"Dims {list(dims)} name a dim twice.")
    return found


def reduce(shape: Shape, dim: int | Sequence[int], keepdim: bool) -> Shape:
    """Return the shape without the reduced dims, or with 1 in their place; the empty tuple stands for all dims."""
    reduced = positive_dims(dim, len(shape)) if dim != () else tuple(range(len(shape)))
    if keepdim:
        return tuple(1 if position in reduced else size for position, size in enumerate(shape))
    return tuple(size for position, size in enumerate(shape) if position not in reduced)


def permute(shape: Shape, dims: Sequence[int]) -> Shape:
    """Return the shape with its dims in another order; OperatorError unless `dims` has each of them once."""
    if len(dims) != len(shape):
        raise OperatorError(f"Dims {list(dims)} should name each of the {len(shape)} dims once.")
    return tuple(shape[position] for position in positive_dims(dims, len(shape)))


def reshape(shape: Shape, sizes: Sequence[int]) -> Shape:
    """Return `sizes` with -1 replaced by what is left of the elements.

    A dim of `shape` may be a symbol; it becomes the -1. OperatorError unless the numbers of elements are equal.
    """
    _check_sizes(sizes)
    if sum(size == _KEPT for size in sizes) > 1:
        raise OperatorError(f"Shape {list(sizes)} should have one -1 at most.")
    symbols = [dim for dim in shape if isinstance(dim, SymDim)]
    count, known = prod(dim for dim in shape if isinstance(dim, int)), prod(size for size in sizes if size != _KEPT)
    problem = OperatorError(f"[{','.join(map(str, shape))}] does not have the elements of a shape {list(sizes)}.")
    if symbols:
        if len(symbols) > 1 or _KEPT not in sizes or count != known:
            raise problem
        return tuple(symbols[0] if size == _KEPT else size for size in sizes)
    if _KEPT not in sizes:
        if count != known:
            raise problem
        return tuple(sizes)
    if known == 0 or count % known:
        raise problem
    return tuple(count // known if size == _KEPT else size for size in sizes)


def expand(shape: Shape, sizes: Sequence[int]) -> Shape:
    """Return `sizes` with -1 replaced by the dim of `shape` there, aligned at the last dims.

    OperatorError where a dim is neither 1 nor the wanted one.
    """
    _check_sizes(sizes)
    num_new = len(sizes) - len(shape)
    problem = OperatorError(
        f"[{','.join(map(str, shape))}] cannot be expanded to {list(sizes)}: aligned at the end, only dims of 1 grow."
    )
    if num_new < 0 or _KEPT in sizes[:num_new]:
        raise problem
    result: list[Dim] = list(sizes[:num_new])
    for dim, size in zip(shape, sizes[num_new:], strict=True):
        if size not in (_KEPT, dim) and dim != 1:
            raise problem
        result.append(dim if size == _KEPT else size)
    return tuple(result)


def known_sizes(shape: Shape) -> tuple[int, ...]:
    """Return sizes for `reshape` and `expand`: a dim that is a symbol is -1."""
    return tuple(dim if isinstance(dim, int) else _KEPT for dim in shape)


def _check_sizes(sizes: Sequence[int]) -> None:
    if any(size < _KEPT for size in sizes):
        raise OperatorError(f"Shape {list(sizes)} should have sizes of 0 or more, or -1.")


SHAPE_FUNCTIONS: Mapping[str, Callable[[Shape, Mapping[str, Any]], Shape]] = {
    "reduce": lambda shape, attributes: reduce(shape, attributes["dim"], attributes["keepdim"]),
    "permute": lambda shape, attributes: permute(shape, attributes["dims"]),
    "reshape": lambda shape, attributes: reshape(shape, attributes["shape"]),
    "expand": lambda shape, attributes: expand(shape, attributes["shape"]),
}
"""The functions by the names that schemas use, of the leading dims and the attributes."""
