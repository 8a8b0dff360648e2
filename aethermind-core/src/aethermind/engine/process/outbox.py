"""What an engine's process has to say. Saying it never makes a step wait: what the reader has no time for is merged."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from aethermind.engine.process.growth import SentOutput
from aethermind.engine.process.messages import Loaded, LogLine, News, Reply
from aethermind.engine.process.wire import pack
from aethermind.engine.serving.held_news import HeldNews

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output_builder import Growth

__all__ = ["Outbox"]

_MOST_LOG_LINES = 1000
"""What is kept for a reader that is busy; the oldest lines go first."""


class Outbox:
    """Mutable. What is new of a request waits until it is due (see `HeldNews`)."""

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = memoryview(b"")
        self._states: HeldNews[int] = HeldNews(clock)
        self._sent: dict[int, SentOutput] = {}
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
        return not (self._unsent or self.has_news)

    @property
    def has_news(self) -> bool:
        """Whether there is something to say that is not on its way."""
        once = (self.progress, self.loaded, self.failure, self.stats)
        return bool(self._refused or self._replies or self._logs or self._states.is_due) or once != (None,) * 4

    def open(self, handle: int, hold_s: float = 0.0) -> None:
        """Expect states of a request, whose news may be held back so long."""
        self._states.open(handle, hold_s)
        self._sent[handle] = SentOutput()

    def put(self, grown: Iterable[tuple[int, Growth]]) -> None:
        """Requests have grown."""
        self._states.put(grown)

    def refuse(self, handle: int, error: Exception) -> None:
        """A request was not taken."""
        self._refused.append((handle, error))

    def drop(self, handle: int) -> None:
        """Nobody wants to know of a request any more."""
        self._states.drop(handle)
        self._sent.pop(handle, None)

    def reply(self, reply: Reply) -> None:
        """The outcome of an `Ask`."""
        self._replies.append(reply)

    def log(self, line: LogLine) -> None:
        """A log record; from any thread."""
        self._logs.append(line)

    def flush(self) -> bool:
        """Say what can be said without waiting; returns whether that was all. OSError if nobody will ever read it."""
        while self._unsent or self.has_news:
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
        for handle, output in self._states.take():
            states.append([handle, *self._sent[handle].cut(output)])
            if output.finished:
                del self._sent[handle]
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
