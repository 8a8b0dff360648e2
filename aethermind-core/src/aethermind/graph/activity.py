"""Whether plans run, for work beside them that can wait until none does."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Activity"]


class Activity:
    """Entered for each run of a plan, by the one thread that runs a model's plans; any thread may ask. Mutable."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_running = 0
        self._ended = clock()

    def __enter__(self) -> None:
        self._num_running += 1

    def __exit__(self, *error: object) -> None:
        self._ended = self._clock()  # before the count, lest it look idle since the run before
        self._num_running -= 1

    @property
    def idle_s(self) -> float:
        """Seconds since the last run ended, or since this was made; 0 while one is under way."""
        return 0.0 if self._num_running else self._clock() - self._ended
