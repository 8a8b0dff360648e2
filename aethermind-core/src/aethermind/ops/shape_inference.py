"""Shape inference: functions of whole shapes, by NumPy's and PyTorch's rules, and the patterns of dims in schemas.

A schema may apply a function to the leading dims, such as `reduce(...)`; the function reads the attributes by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from aethermind.errors import OperatorError
from aethermind.ops.dims import Dim, Shape, SymDim

__all__ = [
    "BROADCAST",
    "REST",
    "broadcast",
    "evaluate",
    "expand",
    "known_sizes",
    "match",
    "permute",
    "positive_dims",
    "reduce",
    "reshape",
]

_INFERRED = -1
"""The size in a list of sizes that `reshape` infers, and that `expand` takes from the input."""


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape to which both are broadcast, aligned at their last dims.

    None if the sizes of two aligned dims differ and neither is 1.
    """
    num_dims = max(len(a), len(b))
    padded_a, padded_b = ((1,) * (num_dims - len(shape)) + shape for shape in (a, b))
    result: list[Dim] = []
    for dim, other in zip(padded_a, padded_b, strict=True):
        if dim != other and dim != 1 and other != 1:
            return None
        result.append(other if dim == 1 else dim)
    return tuple(result)


def positive_dims(dim: int | Sequence[int], num_dims: int) -> tuple[int, ...]:
    """Return indices of dims as numbers from 0, in the same order; negative ones count from the last dim.

    OperatorError for a dim that does not exist or occurs twice.
    """
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    for each in dims:
        if not -num_dims <= each < num_dims:
            raise OperatorError(f"Dim {each} is out of range for a tensor of {num_dims} dims.")
    positive = tuple(each % num_dims for each in dims)
    if len(set(positive)) < len(positive):
        raise OperatorError(f"Dims {list(dims)} name a dim twice.")
    return positive


def reduce(shape: Shape, dim: int | Sequence[int], keepdim: bool) -> Shape:
    """Return the shape without the reduced dims, or with 1 in their place if `keepdim`; `()` stands for all dims."""
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
    """Return `sizes` with -1 replaced by the size that makes the numbers of elements equal.

    One dim of `shape` may be symbolic; then it replaces the -1. OperatorError if the numbers of elements differ.
    """
    _check_sizes(sizes)
    if sum(size == _INFERRED for size in sizes) > 1:
        raise OperatorError(f"Shape {list(sizes)} should have one -1 at most.")
    symbols = [dim for dim in shape if isinstance(dim, SymDim)]
    count, known = prod(dim for dim in shape if isinstance(dim, int)), prod(size for size in sizes if size != _INFERRED)
    problem = OperatorError(f"[{','.join(map(str, shape))}] does not have the elements of a shape {list(sizes)}.")
    if symbols:
        if len(symbols) > 1 or _INFERRED not in sizes or count != known:
            raise problem
        return tuple(symbols[0] if size == _INFERRED else size for size in sizes)
    if _INFERRED not in sizes:
        if count != known:
            raise problem
        return tuple(sizes)
    if known == 0 or count % known:
        raise problem
    return tuple(count // known if size == _INFERRED else size for size in sizes)


def expand(shape: Shape, sizes: Sequence[int]) -> Shape:
    """Return `sizes` with each -1 replaced by the dim of `shape` at this place, aligned at the last dims.

    OperatorError if a dim of `shape` is neither 1 nor the size at its place.
    """
    _check_sizes(sizes)
    num_new = len(sizes) - len(shape)
    problem = OperatorError(
        f"[{','.join(map(str, shape))}] cannot be expanded to {list(sizes)}: aligned at the end, only dims of 1 grow."
    )
    if num_new < 0 or _INFERRED in sizes[:num_new]:
        raise problem
    result: list[Dim] = list(sizes[:num_new])
    for dim, size in zip(shape, sizes[num_new:], strict=True):
        if size not in (_INFERRED, dim) and dim != 1:
            raise problem
        result.append(dim if size == _INFERRED else size)
    return tuple(result)


def known_sizes(shape: Shape) -> tuple[int, ...]:
    """Return a shape as sizes for `reshape` and `expand`: a symbolic dim is -1."""
    return tuple(dim if isinstance(dim, int) else _INFERRED for dim in shape)


def _check_sizes(sizes: Sequence[int]) -> None:
    if any(size < _INFERRED for size in sizes):
        raise OperatorError(f"Shape {list(sizes)} should have sizes of 0 or more, or -1.")


SHAPE_FUNCTIONS: Mapping[str, Callable[[Shape, Mapping[str, Any]], Shape]] = {
    "reduce": lambda shape, attributes: reduce(shape, attributes["dim"], attributes["keepdim"]),
    "permute": lambda shape, attributes: permute(shape, attributes["dims"]),
    "reshape": lambda shape, attributes: reshape(shape, attributes["shape"]),
    "expand": lambda shape, attributes: expand(shape, attributes["shape"]),
}
"""The functions of the leading dims and the attributes, by the names that schemas use."""


# Patterns of dims


Binding = dict[str, "Dim | Shape"]
"""The sizes of the names in a schema, and the leading dims under `...`, as far as they are known."""

REST = "..."
"""Any number of leading dims, the same ones in all tensors of a schema."""
BROADCAST = "#..."
"""Any number of leading dims that are broadcast with those of other tensors; `...` is the shape of the result."""
_TERM = re.compile(r"^(?:(\d+)\*)?([A-Za-z_]\w*|\d+)(?:([*/+-])([A-Za-z_]\w*|\d+))?$")


def match(pattern: Sequence[str], shape: Shape, binding: Binding) -> str | None:
    """Bind the names in a schema's pattern to the dims of a shape; return what does not fit, or None.

    A pattern is a list of names, numbers and `NAME+1`; a leading `...` stands for any number of dims, and `#...` for
    any number that are broadcast.
    """
    if tuple(pattern) == (BROADCAST,):
        return _match_broadcast(shape, binding)
    if pattern and pattern[0] == REST:
        split = len(shape) - (len(pattern) - 1)
        if split < 0:
            return f"needs at least {len(pattern) - 1} dims"
        if binding.setdefault(REST, shape[:split]) != shape[:split]:
            return f"leading dims should be {_format(binding[REST])}"
        pattern, shape = pattern[1:], shape[split:]
    if len(pattern) != len(shape):
        return f"needs {len(pattern)} dims"
    for name, dim in zip(pattern, shape, strict=True):
        problem = _match_dim(name, dim, binding)
        if problem:
            return problem
    return None


def _match_broadcast(shape: Shape, binding: Binding) -> str | None:
    others = binding.get(REST, ())
    assert isinstance(others, tuple)
    common = broadcast(others, shape)
    if common is None:
        return f"it cannot be broadcast with {_format(others)}: aligned at the end, dims must be equal or 1"
    binding[REST] = common
    return None


def _match_dim(name: str, dim: Dim, binding: Binding) -> str | None:
    if name.isdecimal():
        return None if dim == int(name) else f"a dim should be {name}"
    base, plus, offset = name.partition("+")
    value: Dim = dim + -int(offset) if plus else dim
    if binding.setdefault(base, value) != value:
        return f"{base} is {_format(binding[base])} elsewhere"
    return None


def evaluate(pattern: Sequence[str], binding: Mapping[str, Dim | Shape | float]) -> Shape:
    """Return the shape of an output. Terms of its pattern are bound names and `2*A`, `A*B`, `A/B`, `A+1`.

    A term such as `reduce(...)` is one of `SHAPE_FUNCTIONS`.
    """
    shape: list[Dim] = []
    for term in pattern:
        if term.endswith(f"({REST})"):
            rest = binding[REST]
            assert isinstance(rest, tuple)
            shape.extend(SHAPE_FUNCTIONS[term.partition("(")[0]](rest, binding))
        elif term == REST:
            rest = binding[REST]
            assert isinstance(rest, tuple)
            shape.extend(rest)
        else:
            dim = _evaluate_term(term, binding)
            if isinstance(dim, int) and dim < 0:
                raise OperatorError(f"Dim {term} would be {dim}.")
            shape.append(dim)
    return tuple(shape)


def _evaluate_term(term: str, binding: Mapping[str, Dim | Shape | float]) -> Dim:
    parsed = _TERM.match(term)
    assert parsed is not None, f"malformed dim {term!r}"
    factor, left, operator, right = parsed.groups()
    value = _operand(left, binding)
    if factor:
        value = _calculate(value, "*", int(factor))
    return _calculate(value, operator, _operand(right, binding)) if operator else value


def _operand(text: str, binding: Mapping[str, Dim | Shape | float]) -> Dim:
    if text.isdecimal():
        return int(text)
    value = binding[text]
    assert isinstance(value, int | SymDim), f"{text} is not a dim"
    return value


def _calculate(left: Dim, operator: str, right: Dim) -> Dim:
    if operator in "+-" and isinstance(right, int):
        return left + (right if operator == "+" else -right)
    if not isinstance(left, int) or not isinstance(right, int):
        raise OperatorError(f"Dim {left}{operator}{right} is not supported: only a symbolic dim plus a number is.")
    if operator == "*":
        return left * right
    if right == 0 or left % right:
        raise OperatorError(f"Dim {left} is not a multiple of {right}.")
    return left // right


def _format(value: Dim | Shape) -> str:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
