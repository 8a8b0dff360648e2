"""When growing answers are told of: their first and last states at once, those between together with others'."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput

__all__ = ["HeldNews"]

Key = TypeVar("Key")


class HeldNews(Generic[Key]):
    """At most one state of each open request is kept, the newest, until it is due. Mutable.

    The first and the last are due at once, any other when the request's time to hold news back is over. These times
    are multiples of the hold, so that requests with the same are due at the same moments: whoever is told wakes up,
    takes a core from the engine, and might as well hear of all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[Key, RequestOutput] = {}
        self._open: dict[Key, _Open] = {}

    def open(self, key: Key, hold_s: float = 0.0) -> None:
        """Expect states of a request, which may be held back so long."""
        self._open[key] = _Open(hold_s)

    def put(self, key: Key, state: RequestOutput) -> None:
        """The newest state of a request; nobody's where it is not open."""
        if key in self._open:
            self._states[key] = state

    def drop(self, key: Key) -> None:
        """Nobody wants to know of a request any more."""
        self._open.pop(key, None)
        self._states.pop(key, None)

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell now."""
        return bool(self._due(self._clock()))

    def take(self) -> list[tuple[Key, RequestOutput]]:
        """What is to be told now; requests that have finished are open no more."""
        now = self._clock()
        taken = []
        for key in self._due(now):
            state, request = self._states.pop(key), self._open[key]
            if state.finished:
                del self._open[key]
            elif request.hold_s:
                request.due_s = (now // request.hold_s + 1) * request.hold_s
            taken.append((key, state))
        return taken

    def _due(self, now: float) -> list[Key]:
        return [key for key, state in self._states.items() if state.finished or self._open[key].due_s <= now]


@dataclass(slots=True)
class _Open:
    """How long a request's news may be held back, and until when the next are; 0 is before the first."""

    hold_s: float
    due_s: float = 0.0
