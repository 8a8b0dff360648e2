"""Dims of shapes: integers, and symbolic dims, whose sizes are known only when a plan runs (PyTorch: SymInt).

Models have the symbolic dims T (tokens of a step), S (sequences), R (rows that need logits), B (width of block tables)
and others; each has a name, its symbol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Dim", "Shape", "SymDim", "parse_shape", "resolve"]


@dataclass(frozen=True, slots=True)
class SymDim:
    """A dim whose size is known when a plan runs: that of a symbol plus a constant, written `T` or `S+1`."""

    symbol: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.symbol}{self.offset:+d}" if self.offset else self.symbol

    def __add__(self, number: int) -> SymDim:
        return SymDim(self.symbol, self.offset + number)


Dim = int | SymDim
Shape = tuple[Dim, ...]


def parse_shape(text: str) -> Shape:
    """Parse the text form of a shape, such as `T,896` or `S+1`."""
    return tuple(_parse_dim(part.strip()) for part in text.split(",") if part.strip())


def _parse_dim(text: str) -> Dim:
    if text.lstrip("-").isdecimal():
        return int(text)
    symbol, sign, offset = re.match(r"^(\w+)(?:([+-])(\d+))?$", text).groups()  # type: ignore[union-attr]
    return SymDim(symbol, int(offset) * (1 if sign == "+" else -1) if offset else 0)


def resolve(shape: Shape, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape with every symbolic dim replaced by its size; `symbols` maps symbols to sizes."""
    return tuple([dim if isinstance(dim, int) else symbols[dim.symbol] + dim.offset for dim in shape])
