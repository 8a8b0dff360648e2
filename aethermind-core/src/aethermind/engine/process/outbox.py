"""What an engine's process has to say. Saying it never makes a step wait: what the reader has no time for is merged."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aethermind.engine.process.output_delta import SentOutput
from aethermind.engine.process.protocol import EngineOutputs, Loaded, LogLine, UtilityResult, pack
from aethermind.engine.requests.output_coalescer import OutputCoalescer

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output_builder import OutputUpdate

__all__ = ["Outbox"]

_MOST_LOG_LINES = 1000
"""What is kept for a reader that is busy; the oldest lines go first."""


class Outbox:
    """Mutable. What is new of a request waits until it is due (see `OutputCoalescer`)."""

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = memoryview(b"")
        self._states = OutputCoalescer(clock)
        self._names: dict[int, str] = {}
        self._sent: dict[str, tuple[int, SentOutput]] = {}
        self._refused: list[tuple[int, Exception]] = []
        self._results: list[UtilityResult] = []
        self._logs: deque[LogLine] = deque(maxlen=_MOST_LOG_LINES)
        self.progress: tuple[int, int] | None = None
        self.loaded: Loaded | None = None
        self.failure: Exception | None = None
        self.stats: EngineStats | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was said."""
        return not (self._unsent or self.has_output)

    @property
    def has_output(self) -> bool:
        """Whether there is something to say that is not on its way."""
        once = (self.progress, self.loaded, self.failure, self.stats)
        return bool(self._refused or self._results or self._logs or self._states.is_due) or once != (None,) * 4

    def open(self, handle: int, name: str, hold_s: float = 0.0) -> None:
        """Expect states of a request, whose news may be held back so long. Its name may come again once its end was
        told or it was dropped, its handle never.
        """
        self._states.open(name, hold_s)
        self._names[handle] = name
        self._sent[name] = handle, SentOutput()

    def name_of(self, handle: int) -> str | None:
        """What the engine calls a request; None where it is not open."""
        return self._names.get(handle)

    def put(self, updates: Sequence[OutputUpdate]) -> None:
        """What came of a step; nobody's where a request is not open."""
        self._states.put(updates)

    def refuse(self, handle: int, error: Exception) -> None:
        """A request was not taken."""
        self._refused.append((handle, error))

    def drop(self, handle: int) -> None:
        """Nobody wants to know of a request any more."""
        if (name := self._names.pop(handle, None)) is not None:
            self._states.drop(name)
            del self._sent[name]

    def add_result(self, result: UtilityResult) -> None:
        """The outcome of a `UtilityCall`."""
        self._results.append(result)

    def log(self, line: LogLine) -> None:
        """A log record; from any thread."""
        self._logs.append(line)

    def flush(self) -> bool:
        """Say what can be said without waiting; returns whether that was all. OSError if nobody will ever read it."""
        while self._unsent or self.has_output:
            if not self._unsent:
                self._unsent = memoryview(self._next())
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _next(self) -> bytes:
        """All there is to be said now, as one message."""
        states = []
        for name, output in self._states.take():
            handle, sent = self._sent[name]
            states.append([handle, *sent.cut(output)])
            if output.finished:
                del self._sent[name], self._names[handle]
        outputs = EngineOutputs(
            [self._logs.popleft() for _ in range(len(self._logs))],
            self.progress,
            self.loaded,
            self.failure,
            self._results,
            self._refused,
            states,
            self.stats,
        )
        self._refused, self._results = [], []
        self.progress = self.loaded = self.failure = self.stats = None
        return pack(outputs)
