"""How long steps take, by their size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

__all__ = ["StepTimes"]

_WEIGHT = 0.2
_NUM_FIRST = 4


class StepTimes:
    """A moving mean of seconds for each size that came up; straight lines between sizes.

    The least of the first few measurements counts, because they hold what happens only once, and later ones count as
    no more than twice the mean: an interruption of the process says nothing of steps. Mutable.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._sizes: list[int] = []

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one step."""
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == 1:
            insort(self._sizes, size)
            self._seconds[size] = seconds
        elif count <= _NUM_FIRST:
            self._seconds[size] = min(seconds, self._seconds[size])
        else:
            mean = self._seconds[size]
            self._seconds[size] = mean + _WEIGHT * (min(seconds, 2 * mean) - mean)

    def known(self, size: int) -> float | None:
        """The mean of this very size."""
        return self._seconds.get(size)

    def estimate(self, size: int, known: tuple[int, float]) -> float | None:
        """Seconds of a size above a `known` one, which is given with its seconds; None where no such size came up.

        Beyond the largest they grow as they do up to it.
        """
        first = bisect_right(self._sizes, known[0])
        if first == len(self._sizes):
            return None
        index = bisect_left(self._sizes, size, first)
        high = self._point(min(index, len(self._sizes) - 1))
        low = self._point(index - 1) if first < index < len(self._sizes) else known
        slope = (high[1] - low[1]) / (high[0] - low[0])
        return low[1] + max(slope, 0.0) * (size - low[0])

    def _point(self, index: int) -> tuple[int, float]:
        return self._sizes[index], self._seconds[self._sizes[index]]
