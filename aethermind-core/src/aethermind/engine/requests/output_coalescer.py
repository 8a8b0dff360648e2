"""Output queues between an engine and its clients, which coalesce the output of several steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, KeysView, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from aethermind.engine.requests.output_delta import OutputCursor, OutputReader

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_delta import OutputDelta, OutputSource

__all__ = ["OutputCoalescer", "PendingOutputs"]

_HAS_ENDED = attrgetter("has_ended")


class OutputCoalescer:
    """Collects the requests that have new output, and returns a delta for each when it is due. Mutable.

    The first and the last delta of a request are due at once. So is the output of a step that took at least half of
    the request's hold time, because there is little to coalesce. Other output is due at the next multiple of the hold
    time: requests with equal hold times become due together, so that their reader, which takes CPU time from the
    engine, wakes up once for all of them.

    Most steps come soon after the step before and have new output for the same requests, none of it due. These take a
    fast path that does not examine each request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, _OpenRequest] = {}
        self._updated: dict[str, OutputSource] = {}
        self._fast_updated: set[OutputSource] = set()
        self._last_put_s = -inf
        """When `put` was last called."""
        self._due_s = inf
        """The earliest time at which output may be due."""
        self._fast_sources: set[OutputSource] = set()
        """The requests that the fast path accepts: those of the last examined step that have not ended."""
        self._shortest_hold_s = inf
        """The shortest hold time of `_fast_sources`."""
        self._fast_due_s = inf
        """The earliest time at which one of `_fast_sources` is due."""

    def open(self, name: str, hold_s: float = 0.0) -> None:
        """Accept output of a request, which may be held for `hold_s` seconds."""
        self._open[name] = _OpenRequest(hold_s)

    def put(self, sources: Sequence[OutputSource]) -> None:
        """Add the requests that have new output after a step. Those that are not open are ignored."""
        now = self._clock()
        since_last_s, self._last_put_s = now - self._last_put_s, now
        is_quick = since_last_s < self._shortest_hold_s / 2 and now < self._fast_due_s
        if is_quick and True not in map(_HAS_ENDED, sources) and self._fast_sources.issuperset(sources):
            self._fast_updated.update(sources)
            self._due_s = min(self._due_s, self._fast_due_s)
            return
        self._leave_fast_path()
        for source in sources:
            # Output after the end of a request belongs to another client's request that reuses the id.
            request = self._open.get(source.request_id)
            if request is not None and not _has_ended(self._updated.get(source.request_id)):
                self._updated[source.request_id] = source
                if since_last_s >= request.hold_s / 2:
                    request.due_s = now
                if not source.has_ended:
                    self._fast_sources.add(source)
                    self._shortest_hold_s = min(self._shortest_hold_s, request.hold_s)
                    self._fast_due_s = min(self._fast_due_s, request.due_s)
        self._due_s = self._earliest_due_s()

    def drop(self, name: str) -> bool:
        """Ignore a request from now on; returns whether it was open and had not ended."""
        self._leave_fast_path()
        was_open = self._open.pop(name, None) is not None
        was_open = not _has_ended(self._updated.pop(name, None)) and was_open
        self._due_s = self._earliest_due_s()
        return was_open

    @property
    def names(self) -> KeysView[str]:
        """The ids of open requests: those whose last delta was not taken yet."""
        return self._open.keys()

    @property
    def is_due(self) -> bool:
        """Whether output may be due. Called in each step, so it is cheap."""
        return self._due_s <= self._clock()

    def take(self) -> list[tuple[str, OutputDelta]]:
        """Return (request id, delta) of the output that is due. Requests that have finished are closed."""
        now = self._clock()
        if self._due_s > now:
            return []
        self._leave_fast_path()
        taken = []
        for name in [name for name, source in self._updated.items() if self._due_s_of(name, source) <= now]:
            request = self._open[name]
            delta = self._updated.pop(name).delta(request.cursor)
            if delta.finished:
                del self._open[name]
            elif request.hold_s:
                request.due_s = (now // request.hold_s + 1) * request.hold_s
            taken.append((name, delta))
        self._due_s = self._earliest_due_s()
        return taken

    def _leave_fast_path(self) -> None:
        """Add the requests of the fast path to `_updated`; the next step is examined request by request."""
        for source in self._fast_updated:
            if source.request_id in self._open:
                self._updated[source.request_id] = source
        self._fast_updated.clear()
        self._fast_sources.clear()
        self._shortest_hold_s = self._fast_due_s = inf

    def _earliest_due_s(self) -> float:
        return min((self._due_s_of(name, source) for name, source in self._updated.items()), default=inf)

    def _due_s_of(self, name: str, source: OutputSource) -> float:
        return 0.0 if source.has_ended else self._open[name].due_s


@dataclass(slots=True)
class _OpenRequest:
    """An open request: its hold time, when its output is next due, and the position up to which it was taken."""

    hold_s: float
    due_s: float = 0.0
    cursor: OutputCursor = field(default_factory=OutputCursor)


class PendingOutputs:
    """Collects the requests of one caller that have new output, and returns their cumulative outputs. Mutable.

    Called by the thread that holds the engine's lock.
    """

    def __init__(self) -> None:
        self._open: dict[str, OutputReader] = {}
        self._updated: dict[str, OutputSource] = {}

    def open(self, request_id: str) -> None:
        """Accept output of a request."""
        self._open[request_id] = OutputReader()

    def put(self, sources: Sequence[OutputSource]) -> None:
        """Add the requests that have new output. A request is open until its last output is taken or it is dropped."""
        for source in sources:
            name = source.request_id
            # Output after the end of a request belongs to another client's request that reuses the id.
            if name in self._open and not _has_ended(self._updated.get(name)):
                self._updated[name] = source

    def closed(self) -> None:
        """Do nothing: callers check whether the engine is closed."""

    def take(self, request_ids: Collection[str], *, only_last: bool = False) -> list[RequestOutput]:
        """Return the new outputs of these requests; with `only_last`, only of those that have ended."""
        names = [
            name
            for name, source in self._updated.items()
            if name in request_ids and (not only_last or source.has_ended)
        ]
        return [self._read(name, self._updated.pop(name)) for name in names]

    def drop(self, request_id: str) -> bool:
        """Ignore a request from now on; returns whether it was open and had not ended."""
        was_open = self._open.pop(request_id, None) is not None
        return not _has_ended(self._updated.pop(request_id, None)) and was_open

    def _read(self, name: str, source: OutputSource) -> RequestOutput:
        reader = self._open.pop(name) if source.has_ended else self._open[name]
        return reader.read(source)


def _has_ended(source: OutputSource | None) -> bool:
    return source is not None and source.has_ended
