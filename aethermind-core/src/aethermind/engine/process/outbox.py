"""The output queue of an engine's process: it never blocks a step; output that the reader cannot take yet is merged."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aethermind.engine.process.protocol import EngineOutputs, Loaded, LogLine, UtilityResult, encode_delta, pack
from aethermind.engine.requests.output_coalescer import OutputCoalescer

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output_delta import OutputSource

__all__ = ["Outbox"]

_MAX_LOG_LINES = 1000
"""Log lines kept for a busy reader; the oldest are dropped."""


class Outbox:
    """Collects output and sends it without blocking. An `EngineListener`. Mutable.

    Output of requests is held until it is due (see `OutputCoalescer`).
    """

    def __init__(self, sock: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unsent = memoryview(b"")
        self._coalescer = OutputCoalescer(clock)
        self._names: dict[int, str] = {}
        self._handles: dict[str, int] = {}
        self._refused: list[tuple[int, Exception]] = []
        self._results: list[UtilityResult] = []
        self._logs: deque[LogLine] = deque(maxlen=_MAX_LOG_LINES)
        self.progress: tuple[int, int] | None = None
        self.loaded: Loaded | None = None
        self.failure: Exception | None = None
        self.stats: EngineStats | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything has been sent."""
        return not (self._unsent or self.has_output)

    @property
    def has_output(self) -> bool:
        """Whether there is output that is due and not being sent."""
        once = (self.progress, self.loaded, self.failure, self.stats)
        return bool(self._refused or self._results or self._logs or self._coalescer.is_due) or once != (None,) * 4

    def open(self, handle: int, name: str, hold_s: float = 0.0) -> None:
        """Accept output of a request, which may be held for `hold_s` seconds.

        A name may be reused once the end of its request was sent or it was dropped; a handle is never reused.
        """
        self._coalescer.open(name, hold_s)
        self._names[handle] = name
        self._handles[name] = handle

    def name_of(self, handle: int) -> str | None:
        """The engine's id of a request; None if it is not open."""
        return self._names.get(handle)

    def put(self, sources: Sequence[OutputSource]) -> None:
        """Add the requests that have new output. Those that are not open are ignored."""
        self._coalescer.put(sources)

    def closed(self) -> None:
        """The loop that steps the engine closes it, so there is nothing to do here."""

    def refuse(self, handle: int, error: Exception) -> None:
        """Add the error of a request that could not be added to the engine."""
        self._refused.append((handle, error))

    def drop(self, handle: int) -> None:
        """Discard the output of a request from now on."""
        if (name := self._names.pop(handle, None)) is not None:
            self._coalescer.drop(name)
            del self._handles[name]

    def add_result(self, result: UtilityResult) -> None:
        """Add the outcome of a `UtilityCall`."""
        self._results.append(result)

    def log(self, line: LogLine) -> None:
        """Add a log record. Any thread may call this."""
        self._logs.append(line)

    def flush(self) -> bool:
        """Send what can be sent without blocking; returns whether that was all. OSError if the reader has gone."""
        while self._unsent or self.has_output:
            if not self._unsent:
                self._unsent = memoryview(self._next_message())
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _next_message(self) -> bytes:
        """All output that is due, as one message."""
        deltas = []
        for name, delta in self._coalescer.take():
            handle = self._handles[name]
            deltas.append([handle, *encode_delta(delta)])
            if delta.finished:
                del self._handles[name], self._names[handle]
        outputs = EngineOutputs(
            [self._logs.popleft() for _ in range(len(self._logs))],
            self.progress,
            self.loaded,
            self.failure,
            self._results,
            self._refused,
            deltas,
            self.stats,
        )
        self._refused, self._results = [], []
        self.progress = self.loaded = self.failure = self.stats = None
        return pack(outputs)
