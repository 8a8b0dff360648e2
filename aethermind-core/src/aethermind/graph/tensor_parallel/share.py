"""The share of a model that one rank has: ranges of dims, shards of weights, shards of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aethermind.ops.schema import TensorType

__all__ = ["Segments", "Share", "StateShards", "WeightShard", "slice_along"]

Segments = tuple[tuple[int, int], ...]
"""The ranges (begin, end) of the elements of an axis that one rank has."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a model one rank has: it is rank `rank`, counted from 0, of `size` ranks."""

    rank: int
    size: int

    def part(self, length: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of a dim; lengths of parts differ by at most one."""
        return self.bounds(length, self.rank)

    def bounds(self, length: int, rank: int) -> tuple[int, int]:
        """Return begin and end of a rank's part of a dim."""
        return length * rank // self.size, length * (rank + 1) // self.size

    def heads(self, count: int) -> tuple[int, int]:
        """Return begin and end of this rank's heads. Of `count` and `size`, one divides the other.

        If there are more ranks than heads, neighbouring ranks share a head.
        """
        begin = self.rank * count // self.size
        return begin, begin + max(1, count // self.size)

    def longest(self, length: int) -> int:
        """Return the length of the longest part."""
        return -(-length // self.size)


@dataclass(frozen=True, slots=True)
class WeightShard:
    """A shard of a parameter of type `whole`: the elements `begin` to `end` along `axis`.

    If the parameter is a stack of `num_stacked` matrices along that axis, the shard has these elements of each matrix.
    With `segments` the shard has the elements of each of these ranges, and `end` is their number.
    """

    parameter: str
    whole: TensorType
    axis: int
    begin: int
    end: int
    num_stacked: int = 1
    segments: Segments = ()

    @property
    def is_scattered(self) -> bool:
        """Whether the elements of the shard are not contiguous along the axis."""
        return self.num_stacked > 1 or bool(self.segments)

    def of(self, array: Any) -> Any:
        """Return the shard of the whole parameter's array; a view, unless it is scattered."""
        if self.is_scattered:
            return array.take(self.indices(array.shape[self.axis]), self.axis)
        return slice_along(array, self.axis, self.begin, self.end)

    def indices(self, length: int) -> Any:
        """Return the indices, int64 [N], of a scattered shard along its axis of `length` elements."""
        import numpy as np

        if self.segments:
            return np.concatenate([np.arange(*segment) for segment in self.segments])
        matrices = np.arange(length).reshape(self.num_stacked, -1)
        return matrices[:, self.begin : self.end].reshape(-1)


@dataclass(frozen=True, slots=True)
class StateShards:
    """How ranks divide a state along `axis`, counted from the last (negative): `segments[rank]` are a rank's ranges."""

    axis: int
    segments: tuple[Segments, ...]

    def take(self, whole: Any, rank: int) -> Any:
        """Return a copy of a rank's shard of a whole array."""
        import numpy as np

        return np.concatenate([slice_along(whole, self.axis, *segment) for segment in self.segments[rank]], self.axis)

    def put(self, whole: Any, rank: int, shard: Any, rows: list[int]) -> None:
        """Write a rank's shard to these rows (indices of the first axis) of a whole array."""
        offset = 0
        for begin, end in self.segments[rank]:
            values = slice_along(shard, self.axis, offset, offset + end - begin)
            slice_along(whole, self.axis, begin, end)[rows] = values
            offset += end - begin


def slice_along(array: Any, axis: int, begin: int, end: int) -> Any:
    """Return the elements `begin` to `end` of an array along an axis, as a view."""
    index = [slice(None)] * array.ndim
    index[axis] = slice(begin, end)
    return array[tuple(index)]
