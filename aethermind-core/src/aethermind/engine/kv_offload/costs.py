"""Whether fetching blocks takes less time than computing them, by what both took before."""

from __future__ import annotations

import time
from collections.abc import Callable

from aethermind.engine.scheduling.preemption import MeasuredCosts

__all__ = ["FetchCosts"]

_WEIGHT = 0.3
_HALF_LIFE_S = 30.0
_MARGIN = 2.0
"""Computing has to be so many times faster before a store is not asked: it leaves the device to others."""


class FetchCosts:
    """The seconds a fetched byte takes, measured, against the engine's for a computed token. Mutable.

    Nobody measures what nobody does, so the belief in a slow store halves every `_HALF_LIFE_S` without a fetch.
    """

    def __init__(self, engine: MeasuredCosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seconds_per_byte = 0.0
        self._measured_at = clock()

    def compute_seconds(self, num_tokens: int) -> float:
        """How long computing so many tokens of a prompt should take."""
        return num_tokens * self._engine.seconds_per_token

    def is_worth_fetching(self, num_bytes: int, num_tokens: int) -> bool:
        """Whether fetching `num_bytes` should not take much longer than computing their `num_tokens`."""
        age_s = self._clock() - self._measured_at
        fetch_seconds = num_bytes * self._seconds_per_byte * 0.5 ** (age_s / _HALF_LIFE_S)
        return bool(fetch_seconds <= _MARGIN * self.compute_seconds(num_tokens))

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from a fetch, its waiting included."""
        measured = seconds / num_bytes
        weight = _WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (measured - self._seconds_per_byte)
        self._measured_at = self._clock()
