"""The patterns of shapes in operator schemas: matched with actual shapes, and evaluated to those of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aethermind.errors import OperatorError
from aethermind.ops.dims import Dim, Shape, SymDim
from aethermind.ops.shape_functions import SHAPE_FUNCTIONS, broadcast

__all__ = ["BROADCAST", "REST", "evaluate", "match"]

Binding = dict[str, "Dim | Shape"]

REST = "..."
"""Any number of leading dims, the same ones for all tensors of a schema."""
BROADCAST = "#..."
"""Any number of leading dims that are broadcast with those of other tensors; `...` is their common shape."""
_TERM = re.compile(r"^(?:(\d+)\*)?([A-Za-z_]\w*|\d+)(?:([*/+-])([A-Za-z_]\w*|\d+))?$")


def match(pattern: Sequence[str], shape: Shape, binding: Binding) -> str | None:
    """Bind the names in a schema's shape to an actual shape; return what does not fit, or None.

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
            return f"leading dims should be {_show(binding[REST])}"
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
        return f"it cannot be broadcast with {_show(others)}: aligned at the end, dims must be equal or 1"
    binding[REST] = common
    return None


def _match_dim(name: str, dim: Dim, binding: Binding) -> str | None:
    if name.isdecimal():
        return None if dim == int(name) else f"a dim should be {name}"
    base, plus, offset = name.partition("+")
    value: Dim = dim + -int(offset) if plus else dim
    if binding.setdefault(base, value) != value:
        return f"{base} is {_show(binding[base])} elsewhere"
    return None


def evaluate(pattern: Sequence[str], binding: Mapping[str, Dim | Shape | float]) -> Shape:
    """Return the actual shape of an output from bound names; terms are `A`, `2*A`, `A*B`, `A/B`, `A+1`.

    A term `reduce(...)` is a function of `shape_functions`.
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
    parts = _TERM.match(term)
    assert parts is not None, f"malformed dim {term!r}"
    factor, left, operator, right = parts.groups()
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
        raise OperatorError(f"Dim {left}{operator}{right} is not supported: only a symbol plus a number is.")
    if operator == "*":
        return left * right
    if right == 0 or left % right:
        raise OperatorError(f"Dim {left} is not a multiple of {right}.")
    return left // right


def _show(value: Dim | Shape) -> str:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
