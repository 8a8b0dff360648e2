"""When growing answers are told of: their first and last states at once, those between together with others'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from aethermind.engine.requests.output import RequestOutput
from aethermind.engine.requests.output_builder import Growth, has_ended, state_of

__all__ = ["HeldNews"]

Key = TypeVar("Key")


class HeldNews(Generic[Key]):
    """Of each open request is kept that it has grown, until it is due, and its state then written down. Mutable.

    The first and the last are due at once, and so is what took half of the hold or longer to come: there is hardly
    anything to tell it together with. Any other is due when the request's time to hold news back is over. These times
    are multiples of the hold, so that requests with the same are due at the same moments: whoever is told wakes up,
    takes a core from the engine, and might as well hear of all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._grown: dict[Key, Growth] = {}
        self._open: dict[Key, _Open] = {}
        self._due_s = inf
        """When something of it is due. Everybody is asked in every step, so the answer has to be quick."""

    def open(self, key: Key, hold_s: float = 0.0) -> None:
        """Expect states of a request, which may be held back so long."""
        self._open[key] = _Open(hold_s)

    def put(self, grown: Iterable[tuple[Key, Growth]]) -> None:
        """Requests have grown; nobody's where they are not open."""
        now = self._clock()
        for key, growth in grown:
            request = self._open.get(key)
            if request is None:
                continue
            if now - request.grown_s >= request.hold_s / 2:
                request.due_s = now
            request.grown_s = now
            self._grown[key] = growth
            due_s = 0.0 if has_ended(growth) else request.due_s
            if due_s < self._due_s:
                self._due_s = due_s

    def drop(self, key: Key) -> None:
        """Nobody wants to know of a request any more."""
        self._open.pop(key, None)
        self._grown.pop(key, None)
        self._due_s = self._next_due_s()

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell now."""
        return self._due_s <= self._clock()

    def take(self) -> list[tuple[Key, RequestOutput]]:
        """What is to be told now; requests that have finished are open no more."""
        now = self._clock()
        if self._due_s > now:
            return []
        taken = []
        for key in [key for key, growth in self._grown.items() if self._due_s_of(key, growth) <= now]:
            state, request = state_of(self._grown.pop(key)), self._open[key]
            if state.finished:
                del self._open[key]
            elif request.hold_s:
                request.due_s = (now // request.hold_s + 1) * request.hold_s
            taken.append((key, state))
        self._due_s = self._next_due_s()
        return taken

    def _next_due_s(self) -> float:
        return min((self._due_s_of(key, growth) for key, growth in self._grown.items()), default=inf)

    def _due_s_of(self, key: Key, growth: Growth) -> float:
        return 0.0 if has_ended(growth) else self._open[key].due_s


@dataclass(slots=True)
class _Open:
    """How long a request's news may be held back, and until when the next are; when it grew last."""

    hold_s: float
    due_s: float = 0.0
    grown_s: float = -inf
