"""The process of one engine, started by `Child`: its loop reads messages, steps the engine and sends output.

One thread does all three. The process exits on a `Close` message, and when its parent has ended.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from aethermind.engine.engine import Engine
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import describe_model, log_loaded
from aethermind.engine.parts import EngineParts
from aethermind.engine.process.protocol import (
    UTILITY_METHODS,
    Abort,
    Add,
    Close,
    EngineOutputs,
    Forget,
    Loaded,
    LogLine,
    Setup,
    Unpacker,
    UtilityCall,
    UtilityResult,
    encode_delta,
    pack,
)
from aethermind.engine.process.start import check_version, init_child
from aethermind.engine.requests.output_coalescer import OutputCoalescer
from aethermind.errors import AetherMindError, EngineDeadError, describe_exception
from aethermind.log import get_logger
from aethermind.runtime import Runtime
from aethermind.sampling.params import read_sampling_defaults

if TYPE_CHECKING:
    from concurrent.futures import Future

    from aethermind.engine.requests.output_delta import OutputSource
    from aethermind.sampling.guidance import Guide

__all__ = ["Outbox", "PendingGrammar", "PendingGrammars", "main"]

_MAX_LOG_LINES = 1000
"""Maximum number of unsent log lines; the oldest are dropped."""


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
        """Whether there is output that is due, besides the message that is being sent."""
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
        """Do nothing: the loop that steps the engine also closes it."""

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
        """Send what can be sent without blocking; returns whether that was all. OSError if the socket is closed."""
        while self._unsent or self.has_output:
            if not self._unsent:
                self._unsent = memoryview(self._next_message())
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _next_message(self) -> bytes:
        """Encode all output that is due as one message."""
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


_IDLE_S = 1.0
"""Maximum wait while idle, in seconds; log lines of other threads are sent after it."""

_POLL_S = 0.02
"""Interval at which grammars that are being compiled are checked while no request runs."""

_FINAL_FLUSH_S = 2.0
"""Time limit for sending the reason of a failure before the process exits."""

_STATS_WITH_OUTPUT_S = 0.01
"""Shortest interval of statistics that are sent with other output."""

_STATS_ALONE_S = 0.1
"""Interval of statistics without other output. Each message wakes the reader, which takes CPU time from steps."""

_RECEIVE_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1

_PRELOADED_MODULES = (
    "aethermind.dispatch.reference",
    "aethermind.engine.executors.executor",
    "aethermind.model.blocks",
    "aethermind.text.tokenizer_files",
    "ml_dtypes",
    "tokenizers",
)
"""Modules that most models need, imported before the model is known."""

_log = get_logger(__name__)


def main(fd: int, parent: int, version: str) -> int:
    """Serve the client at the other end of a socket; returns the exit code."""
    _exit_with_parent(parent)
    init_child()
    with socket.socket(fileno=_lowest_fd(fd)) as sock:
        outbox = Outbox(sock)
        inbox = _Inbox(sock)
        try:
            return _serve(inbox, outbox, version)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 0  # the parent has ended


def _serve(inbox: _Inbox, outbox: Outbox, version: str) -> int:
    logger = logging.getLogger("aethermind")
    logger.addHandler(_Forwarding(outbox))
    runtime = Runtime.boot()
    _preload(runtime)  # before the first message: a spare process waits for it
    setup = inbox.wait_for_setup()
    logger.setLevel(setup.log_level)
    try:
        check_version(version)
        engine = _load(runtime, setup, outbox)
        gc.collect()
        gc.freeze()  # loaded objects live as long as the process: no collection needs to scan them
    except Exception as error:
        if not isinstance(error, AetherMindError):
            _log.exception("the model could not be loaded")
        outbox.failure = error if isinstance(error, AetherMindError) else EngineDeadError(describe_exception(error))
        _flush_all(outbox, inbox.sock)
        return 1
    try:
        _Worker(engine, inbox, outbox).run()
        engine.save_sessions(lambda: _send_heartbeat(engine, outbox))  # the parent kills a process that sends nothing
    except (BrokenPipeError, ConnectionResetError, EOFError):
        raise
    except Exception as error:
        _log.exception("the engine failed")
        outbox.failure = EngineDeadError(f"The engine failed: {describe_exception(error)}")
        _flush_all(outbox, inbox.sock)
        return 1
    finally:
        engine.close()
    _flush_all(outbox, inbox.sock)  # what closing has logged, such as sessions that are not saved
    return 0


def _preload(runtime: Runtime) -> None:
    """Load what every model needs: operators, the kernels of the best device, and modules. Opens no device.

    Errors recur when a device is opened, which has the name that was configured.
    """
    with suppress(AetherMindError, ImportError):
        runtime.kernels.kernels(runtime.devices.select("auto").device.type)
        for name in _PRELOADED_MODULES:
            import_module(name)
    gc.collect()
    gc.freeze()  # so that the collection after loading scans what was loaded and not all modules


def _load(runtime: Runtime, setup: Setup, outbox: Outbox) -> Engine:
    started = time.perf_counter()

    def show_progress(done: int, total: int) -> None:
        outbox.progress = (done, total)
        outbox.flush()

    parts = EngineParts.of(runtime, setup.model, setup.config)
    engine = Engine.load(parts, show_progress)
    compiled = parts.compiled
    outbox.loaded = Loaded(
        describe_model(engine, time.perf_counter() - started),
        read_sampling_defaults(compiled.generation),
        compiled.model.config.vocab_size,
    )
    log_loaded(outbox.loaded.info)
    return engine


class _Inbox:
    """Reads messages from the socket without blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unpacker = Unpacker()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def wait_for_setup(self) -> Setup:
        """Wait for the first message."""
        while True:
            select.select([self.sock], [], [])
            for message in self.take():
                assert isinstance(message, Setup)
                return message

    def take(self) -> list[Any]:
        """Return the messages that have arrived. EOFError at the end of the stream."""
        if not self._poll.poll(0):  # cheaper in each step than the exception of a recv without data
            return []
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise EOFError
        return list(self._unpacker.feed(data))


class _Worker:
    """The loop of the process: it handles messages, runs a step, and sends output."""

    def __init__(self, engine: Engine, inbox: _Inbox, outbox: Outbox) -> None:
        self._engine = engine
        self._inbox = inbox
        self._outbox = outbox
        self._pending = PendingGrammars()
        engine.add_listener(outbox)
        self._stats_s = 0.0

    def run(self) -> None:
        """Run until a `Close` message."""
        engine, outbox = self._engine, self._outbox
        while True:
            self._update_stats()
            is_flushed = outbox.flush()
            if not engine.has_unfinished:
                timeout_s = _POLL_S if self._pending else _IDLE_S
                select.select([self._inbox.sock], [] if is_flushed else [self._inbox.sock], [], timeout_s)
            for message in self._inbox.take():
                if isinstance(message, Close):
                    return
                self._handle(message)
            self._add_compiled()
            if engine.has_unfinished:
                engine.advance()

    def _update_stats(self) -> None:
        """Send statistics with other output, and at intervals without: the parent kills a silent process."""
        now = time.monotonic()
        age_s = now - self._stats_s
        is_due = age_s >= _STATS_ALONE_S or (age_s >= _STATS_WITH_OUTPUT_S and self._outbox.has_output)
        if is_due or not self._engine.has_unfinished:
            self._outbox.stats = EngineStats.of(self._engine)
            self._stats_s = now

    def _handle(self, message: Add | Abort | Forget | UtilityCall) -> None:
        match message:
            case Add():
                try:
                    grammar = self._engine.prepare(message.params)
                except Exception as error:
                    self._outbox.refuse(message.handle, _logged(error))
                    return
                if grammar is None or grammar.done():
                    self._add(message, grammar)
                else:
                    self._pending.add(message, grammar)
            case Abort() | Forget() if self._pending.cancel(message):
                pass
            case Abort(handle):
                if (name := self._outbox.name_of(handle)) is not None:
                    self._engine.abort(name)
            case Forget(handle):
                if (name := self._outbox.name_of(handle)) is not None:
                    self._engine.abort(name)  # without effect if it has finished
                    self._outbox.drop(handle)
            case UtilityCall(number, method, arguments):
                self._outbox.add_result(self._call(number, method, arguments))
            case _:
                assert_never(message)

    def _add_compiled(self) -> None:
        for request, grammar, is_aborted in self._pending.take():
            self._add(request, grammar)
            if is_aborted:
                self._handle(Abort(request.handle))

    def _add(self, request: Add, grammar: Future[Guide] | None) -> None:
        prompt = request.prompt
        self._outbox.open(request.handle, request.name, request.hold_s)
        try:
            self._engine.add_request(
                request.name,
                prompt.token_ids,
                request.params,
                prompt=prompt.text,
                embeddings=prompt.embeddings,
                is_chat=prompt.is_chat,
                options=request.options,
                guide=None if grammar is None else grammar.result(),
            )
        except Exception as error:
            self._outbox.drop(request.handle)
            self._outbox.refuse(request.handle, _logged(error))

    def _call(self, number: int, method: str, arguments: dict[str, Any]) -> UtilityResult:
        try:
            assert method in UTILITY_METHODS, f"{method} is not a utility method"
            return UtilityResult(number, getattr(self._engine, method)(**arguments))
        except Exception as error:
            return UtilityResult(number, None, _logged(error))


class _Forwarding(logging.Handler):
    """Sends log records to the parent, which passes them to its own handlers."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._outbox.log(LogLine(record.levelno, record.name, record.getMessage(), record.created, traceback))


def _logged(error: Exception) -> Exception:
    """Return the error to send. An unexpected one is logged here, because its traceback is not sent."""
    if not isinstance(error, AetherMindError):
        _log.error("a request failed", exc_info=error)
    return error


def _send_heartbeat(engine: Engine, outbox: Outbox) -> None:
    outbox.stats = EngineStats.of(engine)
    outbox.flush()


def _flush_all(outbox: Outbox, sock: socket.socket) -> None:
    """Send all output; give up after `_FINAL_FLUSH_S`."""
    until = time.monotonic() + _FINAL_FLUSH_S
    while not outbox.flush() and (left := until - time.monotonic()) > 0:
        select.select([], [sock], [], left)


def _lowest_fd(fd: int) -> int:
    """Move a file descriptor to the lowest free number, which children do not inherit.

    `select` accepts none above 1023, and a parent with many connections may pass a greater one.
    """
    lowest = os.dup(fd)
    os.close(fd)
    return lowest


def _exit_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even in the middle of a step (Linux: prctl(2)).

    On other systems the end of the socket is detected between two steps.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before this call
        os._exit(0)


class PendingGrammar(NamedTuple):
    """A request, the grammar that is being compiled for it, and whether to abort the request once it is added."""

    request: Add
    grammar: Future[Guide]
    is_aborted: bool = False


class PendingGrammars:
    """Requests whose grammars are being compiled in threads, by handle. Mutable."""

    def __init__(self) -> None:
        self._waiting: dict[int, PendingGrammar] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Add, grammar: Future[Guide]) -> None:
        """Keep a request until its grammar is compiled."""
        self._waiting[request.handle] = PendingGrammar(request, grammar)

    def cancel(self, message: Abort | Forget) -> bool:
        """Abort or forget a pending request; False if no pending request has this handle."""
        pending = self._waiting.get(message.handle)
        if pending is None:
            return False
        if isinstance(message, Abort):
            self._waiting[message.handle] = pending._replace(is_aborted=True)
        else:
            pending.grammar.cancel()
            del self._waiting[message.handle]
        return True

    def take(self) -> list[PendingGrammar]:
        """Remove and return the requests whose grammars are compiled."""
        ready = [pending for pending in self._waiting.values() if pending.grammar.done()]
        for pending in ready:
            del self._waiting[pending.request.handle]
        return ready
