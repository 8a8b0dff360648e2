"""Which part of a model one rank of several has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aethermind.ops.schema import TensorType

__all__ = ["Share", "WeightPart", "along"]


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `size`, counted from 0."""

    rank: int
    size: int

    def part(self, length: int) -> tuple[int, int]:
        """Where this rank's part of a dim begins and ends; parts differ by one where they cannot be equal."""
        return self.bounds(length, self.rank)

    def bounds(self, length: int, rank: int) -> tuple[int, int]:
        """The same for any rank."""
        return length * rank // self.size, length * (rank + 1) // self.size

    def heads(self, count: int) -> tuple[int, int]:
        """Which of `count` heads: an equal part of them, or the one that neighbours have too where ranks are more.

        One of the two numbers divides the other.
        """
        begin = self.rank * count // self.size
        return begin, begin + max(1, count // self.size)

    def longest(self, length: int) -> int:
        """The length of the longest part."""
        return -(-length // self.size)


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The elements `begin` to `end` along `axis` of a parameter of the whole model, which has the type `whole`."""

    parameter: str
    whole: TensorType
    axis: int
    begin: int
    end: int

    def of(self, array: Any) -> Any:
        """These elements of the whole parameter's array, as a view."""
        return along(array, self.axis, self.begin, self.end)


def along(array: Any, axis: int, begin: int, end: int) -> Any:
    """The elements of an array from `begin` to `end` of an axis, as a view."""
    index = [slice(None)] * array.ndim
    index[axis] = slice(begin, end)
    return array[tuple(index)]
