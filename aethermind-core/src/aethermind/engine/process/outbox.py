"""What an engine's process has to say. Saying it never makes a step wait: what the reader has no time for is merged."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aethermind.engine.process.growth import SentOutput
from aethermind.engine.process.messages import Loaded, LogLine, News, Reply
from aethermind.engine.process.wire import pack

if TYPE_CHECKING:
    from aethermind.engine.engine_stats import EngineStats
    from aethermind.engine.output import RequestOutput

__all__ = ["Outbox"]

_MOST_LOG_LINES = 1000
"""What is kept for a reader that is busy; the oldest lines go first."""


class Outbox:
    """Mutable. At most one state of each open request is kept, the newest. It is told at once where it is the first or
    the last, else when the request's time to hold news back is over.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = memoryview(b"")
        self._states: dict[int, RequestOutput] = {}
        self._open: dict[int, _Open] = {}
        self._refused: list[tuple[int, Exception]] = []
        self._replies: list[Reply] = []
        self._logs: deque[LogLine] = deque(maxlen=_MOST_LOG_LINES)
        self.progress: tuple[int, int] | None = None
        self.loaded: Loaded | None = None
        self.failure: Exception | None = None
        self.stats: EngineStats | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was said."""
        return not (self._unsent or self._has_news)

    @property
    def _has_news(self) -> bool:
        once = (self.progress, self.loaded, self.failure, self.stats)
        return bool(self._refused or self._replies or self._logs or self._due()) or once != (None,) * 4

    def _due(self) -> list[int]:
        """The requests whose states are to be told now."""
        now = time.monotonic()
        return [handle for handle, state in self._states.items() if state.finished or self._open[handle].due_s <= now]

    def open(self, handle: int, hold_s: float = 0.0) -> None:
        """Expect states of a request, whose news may be held back so long."""
        self._open[handle] = _Open(hold_s)

    def put(self, handle: int, state: RequestOutput) -> None:
        """The newest state of a request that was opened and has not been dropped."""
        self._states[handle] = state

    def refuse(self, handle: int, error: Exception) -> None:
        """A request was not taken."""
        self._refused.append((handle, error))

    def drop(self, handle: int) -> None:
        """Nobody wants to know of a request any more."""
        self._open.pop(handle, None)
        self._states.pop(handle, None)

    def reply(self, reply: Reply) -> None:
        """The outcome of an `Ask`."""
        self._replies.append(reply)

    def log(self, line: LogLine) -> None:
        """A log record; from any thread."""
        self._logs.append(line)

    def flush(self) -> bool:
        """Say what can be said without waiting; returns whether that was all. OSError if nobody will ever read it."""
        while not self.is_empty:
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
        now = time.monotonic()
        for handle in self._due():
            output, request = self._states.pop(handle), self._open[handle]
            states.append([handle, *request.sent.cut(output)])
            request.due_s = now + request.hold_s
            if output.finished:
                del self._open[handle]
        news = News(
            [self._logs.popleft() for _ in range(len(self._logs))],
            self.progress,
            self.loaded,
            self.failure,
            self._replies,
            self._refused,
            states,
            self.stats,
        )
        self._refused, self._replies = [], []
        self.progress = self.loaded = self.failure = self.stats = None
        return pack(news)


@dataclass(slots=True)
class _Open:
    """An open request: how long its news may be held back, until when the next are, and what was sent of it."""

    hold_s: float
    due_s: float = 0.0
    sent: SentOutput = field(default_factory=SentOutput)
