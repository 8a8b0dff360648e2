"""When a thread may do a piece of work that nobody waits for: while the model runs nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.graph.activity import Activity

__all__ = ["IdleTurns"]


class IdleTurns:
    """Turns between requests: once nothing has run for `QUIET_S`, one after the other until something does.

    A model that never rests leaves one turn every `PATIENCE_S`, so that the work is done at last. Once somebody is to
    `hurry`, or to `give_up`, nothing is waited for any more. The thread that works asks; any other may say so.
    """

    QUIET_S = 0.1
    """Longer than what lies between two steps of a request: their host work, and the reader of a stream."""

    PATIENCE_S = 0.5

    def __init__(
        self,
        activity: Activity,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._activity = activity
        self._clock = clock
        self._wait = wait
        self._last = clock()
        self._is_hurried = threading.Event()
        self._is_given_up = False

    def is_over(self) -> bool:
        """Wait for a turn; True where none will come, as the work was given up."""
        while not self._is_hurried.is_set():
            now = self._clock()
            quiet_s = self.QUIET_S - self._activity.idle_s
            left_s = min(quiet_s, self._last + self.PATIENCE_S - now)
            if left_s <= 0:
                break
            self._wait(self._is_hurried, left_s)
        self._last = self._clock()
        return self._is_given_up

    def hurry(self) -> None:
        """Have what is left done at once, at the end of the program."""
        self._is_hurried.set()

    def give_up(self) -> None:
        """Have what is left not done."""
        self._is_given_up = True
        self._is_hurried.set()
