"""How much was taken in the last minute."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["SlidingSum", "WINDOW_S"]

WINDOW_S = 60.0
"""Seconds that a rate looks back."""


class SlidingSum:
    """A sum over the last `WINDOW_S` seconds, to the second. Mutable; it holds one number for each second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, amount: int, now: float) -> None:
        """Count `amount` at the second of `now`."""
        second = math.floor(now)
        if self._seconds and self._seconds[-1][0] >= second:
            last, held = self._seconds.pop()
            self._seconds.append((last, held + amount))
        else:
            self._seconds.append((second, amount))
        self._total += amount

    def total(self, now: float) -> int:
        """What was added in the window that ends at `now`."""
        while self._seconds and self._seconds[0][0] <= now - WINDOW_S:
            self._total -= self._seconds.popleft()[1]
        return self._total

    def wait_s(self, most: int, now: float) -> float:
        """Seconds from `now` until the sum is at most `most`, if nothing is added; 0 if it is."""
        total, wait = self.total(now), 0.0
        for second, amount in self._seconds:
            if total <= most:
                break
            total -= amount
            wait = second + WINDOW_S - now
        return wait
