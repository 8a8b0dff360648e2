"""Dims: integers, and symbols that have a value only at run time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Dim", "Shape", "SymDim", "parse_shape", "resolve"]


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
