"""When growing answers are told of: their first and last states at once, those between together with others'."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, KeysView, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from aethermind.engine.requests.output import RequestOutput
from aethermind.engine.requests.output_builder import OutputUpdate, has_ended, state_of

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput

__all__ = ["OutputCoalescer", "PendingOutputs"]


class OutputCoalescer:
    """Of each open request, by its name, is kept that it has grown, until it is due, and its state then written down.
    Mutable.

    The first and the last are due at once, and so is what a step took half of the hold or longer to make: there is
    hardly anything to tell it together with. Any other is due when the request's time to hold news back is over. These
    times are multiples of the hold, so that requests with the same are due at the same moments: whoever is told wakes
    up, takes a core from the engine, and might as well hear of all.

    Most steps come soon after the one before, what grew in them is what grew before, and nothing is due after them.
    What grew in these is noted as a whole, without looking at each request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._grown: dict[str, OutputUpdate] = {}
        self._noted: set[OutputUpdate] = set()
        self._put_s = -inf
        self._due_s = inf
        """When something of it may be due."""
        self._usual: set[OutputUpdate] = set()
        self._shortest_hold_s = inf
        self._next_due_s = inf
        """Answers that were last looked at, of those that go on; their shortest hold, and when the first is over."""

    def open(self, name: str, hold_s: float = 0.0) -> None:
        """Expect states of a request, which may be held back so long."""
        self._open[name] = _Open(hold_s)

    def put(self, updates: Sequence[OutputUpdate]) -> None:
        """What came of a step; nobody's where a request is not open."""
        now = self._clock()
        took_s, self._put_s = now - self._put_s, now
        is_quick = took_s < self._shortest_hold_s / 2 and now < self._next_due_s
        if is_quick and RequestOutput not in map(type, updates) and self._usual.issuperset(updates):
            self._noted.update(updates)
            self._due_s = min(self._due_s, self._next_due_s)
            return
        self._forget_usual()
        for growth in updates:
            # What follows a last state is of another user's request, which took over the id.
            request = self._open.get(growth.request_id)
            if request is not None and not has_ended(self._grown.get(growth.request_id)):
                self._grown[growth.request_id] = growth
                if took_s >= request.hold_s / 2:
                    request.due_s = now
                if type(growth) is not RequestOutput:
                    self._usual.add(growth)
                    self._shortest_hold_s = min(self._shortest_hold_s, request.hold_s)
                    self._next_due_s = min(self._next_due_s, request.due_s)
        self._due_s = self._earliest()

    def drop(self, name: str) -> bool:
        """Nobody wants to know of a request any more; whether it was open and has not ended."""
        self._forget_usual()
        was_open = self._open.pop(name, None) is not None
        was_open = not has_ended(self._grown.pop(name, None)) and was_open
        self._due_s = self._earliest()
        return was_open

    @property
    def names(self) -> KeysView[str]:
        """The requests that are open: no last state of theirs was taken."""
        return self._open.keys()

    @property
    def is_due(self) -> bool:
        """Whether there may be something to tell now. Everybody is asked in every step, so the answer is quick."""
        return self._due_s <= self._clock()

    def take(self) -> list[tuple[str, RequestOutput]]:
        """What is to be told now; requests that have finished are open no more."""
        now = self._clock()
        if self._due_s > now:
            return []
        self._forget_usual()
        taken = []
        for name in [name for name, growth in self._grown.items() if self._due_s_of(name, growth) <= now]:
            state, request = state_of(self._grown.pop(name)), self._open[name]
            if state.finished:
                del self._open[name]
            elif request.hold_s:
                request.due_s = (now // request.hold_s + 1) * request.hold_s
            taken.append((name, state))
        self._due_s = self._earliest()
        return taken

    def _forget_usual(self) -> None:
        """Take what was noted to what has grown; the next step is looked at again."""
        for growth in self._noted:
            if growth.request_id in self._open:
                self._grown[growth.request_id] = growth
        self._noted.clear()
        self._usual.clear()
        self._shortest_hold_s = self._next_due_s = inf

    def _earliest(self) -> float:
        return min((self._due_s_of(name, growth) for name, growth in self._grown.items()), default=inf)

    def _due_s_of(self, name: str, growth: OutputUpdate) -> float:
        return 0.0 if has_ended(growth) else self._open[name].due_s


@dataclass(slots=True)
class _Open:
    """How long a request's news may be held back, and until when the next are."""

    hold_s: float
    due_s: float = 0.0


class PendingOutputs:
    """Keeps the newest growth of each open request. Mutable; called by the thread that has the engine's turn."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._grown: dict[str, OutputUpdate] = {}

    def open(self, request_id: str) -> None:
        """Expect updates of a request."""
        self._open.add(request_id)

    def put(self, updates: Sequence[OutputUpdate]) -> None:
        """Keep those of open requests. A request is open until its last state is taken or it is dropped."""
        for growth in updates:
            name = growth.request_id
            # What follows a last state is of another user's request, which took over the id.
            if name in self._open and not has_ended(self._grown.get(name)):
                self._grown[name] = growth

    def closed(self) -> None:
        """Whoever waits looks at the engine."""

    def take(self, request_ids: Collection[str], *, only_last: bool = False) -> list[RequestOutput]:
        """The states of these requests that are new, or with `only_last` those that are their last."""
        names = [
            name for name, growth in self._grown.items() if name in request_ids and (not only_last or has_ended(growth))
        ]
        states = [state_of(self._grown.pop(name)) for name in names]
        self._open.difference_update(state.request_id for state in states if state.finished)
        return states

    def drop(self, request_id: str) -> bool:
        """Expect no more; whether the request was open and has not ended."""
        was_open = request_id in self._open
        self._open.discard(request_id)
        return not has_ended(self._grown.pop(request_id, None)) and was_open
