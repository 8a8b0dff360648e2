"""Threads that use one engine, one after the other."""

from __future__ import annotations

import time
from collections import deque
from threading import RLock

__all__ = ["Turns"]

_COURTESY_S = 1e-4
"""As long as a thread may need to wake up and take what was left to it."""


class Turns:
    """A lock that whoever takes it again and again can leave to others in between; a thread that has it may take it
    again, as what is collected as garbage in the middle of a step does.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._waiting: deque[None] = deque()  # of all ways to count, one that no two threads can disturb

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        self._waiting.append(None)
        try:
            self._lock.acquire()
        finally:
            self._waiting.pop()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def give_way(self) -> None:
        """Outside of a turn: let those have theirs who wait. Who is quick would otherwise be the first again."""
        if self._waiting:
            time.sleep(_COURTESY_S)
