"""Threads that use one engine, one after the other."""

from __future__ import annotations

import os
import time
from collections import deque
from threading import RLock
from weakref import WeakSet

__all__ = ["Turns"]

_COURTESY_S = 1e-4
"""As long as a thread may need to wake up and take what was left to it."""


_ALL: WeakSet[Turns] = WeakSet()


class Turns:
    """A lock that whoever takes it again and again can leave to others in between; a thread that has it may take it
    again, as what is collected as garbage in the middle of a step does.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        _ALL.add(self)
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


def _free_all() -> None:
    """In a fork of the process: a thread that has a turn is not here to end it."""
    for turns in _ALL:
        turns._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
