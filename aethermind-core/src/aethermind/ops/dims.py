"""Dims: integers, symbols that have a value only at run time, and the expressions in operator schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aethermind.errors import OperatorError

__all__ = ["Dim", "Shape", "SymDim", "evaluate", "match", "parse_shape", "resolve"]


@dataclass(frozen=True, slots=True)
class SymDim:
    """A length that is known when a plan runs: a symbol plus a constant, written `T` or `S+1`."""

    symbol: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.symbol}{self.offset:+d}" if self.offset else self.symbol

    def __add__(self, number: int) -> SymDim:
        return SymDim(self.symbol, self.offset + number)


Dim = int | SymDim
Shape = tuple[Dim, ...]
Binding = dict[str, "Dim | Shape"]

REST = "..."
_TERM = re.compile(r"^(?:(\d+)\*)?([A-Za-z_]\w*|\d+)(?:([*/+-])([A-Za-z_]\w*|\d+))?$")


def parse_shape(text: str) -> Shape:
    """Parse a graph shape such as `T,896` or `S+1`."""
    return tuple(_parse_dim(part.strip()) for part in text.split(",") if part.strip())


def _parse_dim(text: str) -> Dim:
    if text.lstrip("-").isdecimal():
        return int(text)
    symbol, sign, offset = re.match(r"^(\w+)(?:([+-])(\d+))?$", text).groups()  # type: ignore[union-attr]
    return SymDim(symbol, int(offset) * (1 if sign == "+" else -1) if offset else 0)


def resolve(shape: Shape, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Replace every symbol by its value."""
    return tuple([dim if isinstance(dim, int) else symbols[dim.symbol] + dim.offset for dim in shape])


def match(pattern: Sequence[str], shape: Shape, binding: Binding) -> str | None:
    """Bind the names in a schema's shape to an actual shape; return what does not fit, or None.

    A pattern is a list of names, numbers and `NAME+1`; a leading `...` stands for any number of dims.
    """
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


def _match_dim(name: str, dim: Dim, binding: Binding) -> str | None:
    if name.isdecimal():
        return None if dim == int(name) else f"a dim should be {name}"
    base, plus, offset = name.partition("+")
    value: Dim = dim + -int(offset) if plus else dim
    if binding.setdefault(base, value) != value:
        return f"{base} is {_show(binding[base])} elsewhere"
    return None


def evaluate(pattern: Sequence[str], binding: Mapping[str, Dim | Shape | float]) -> Shape:
    """Return the actual shape of an output from bound names; terms are `A`, `2*A`, `A*B`, `A/B`, `A+1`."""
    shape: list[Dim] = []
    for term in pattern:
        if term == REST:
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
