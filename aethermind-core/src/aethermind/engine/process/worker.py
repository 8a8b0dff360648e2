"""The process of one engine, started by `Child`.

One thread steps the engine and, between steps, reads what is asked and says what there is to say. It ends when it is
told to, and when whoever started it has gone.
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
from typing import TYPE_CHECKING, Any, assert_never

from aethermind.engine.engine import Engine
from aethermind.engine.loading.loader import plan_model
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import describe_model, log_loaded
from aethermind.engine.process.messages import CALLS, Abort, Add, Ask, Close, Forget, Loaded, LogLine, Reply, Setup
from aethermind.engine.process.outbox import Outbox
from aethermind.engine.process.preparing import Preparing
from aethermind.engine.process.start import begin, check_version
from aethermind.engine.process.wire import Unpacker
from aethermind.errors import AetherMindError, EngineDeadError, in_words
from aethermind.log import get_logger
from aethermind.runtime import Runtime
from aethermind.sampling.generation_config import read_sampling_defaults

if TYPE_CHECKING:
    from concurrent.futures import Future

    from aethermind.sampling.guidance import TokenGuide

__all__ = ["main"]

_IDLE_S = 1.0
"""How long log lines of other threads may wait while there is nothing to do."""

_POLL_S = 0.02
"""How long what a thread has made for a request may wait while there is nothing else to do."""

_LAST_WORDS_S = 2.0
_STATS_EVERY_S = 0.01
"""How old what is told of the engine with other news may be."""

_SILENCE_S = 0.1
"""How long nothing is told where there is no news: each message wakes the reader, who takes a core from the step."""

_RECEIVE_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1

_log = get_logger(__name__)


def main(fd: int, parent: int, version: str) -> int:
    """Serve whoever holds the other end of a socket; returns the exit code."""
    _die_with(parent)
    begin()
    with socket.socket(fileno=_low(fd)) as sock:
        outbox = Outbox(sock)
        inbox = _Inbox(sock)
        try:
            return _serve(inbox, outbox, version)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 0  # nobody is there any more


def _serve(inbox: _Inbox, outbox: Outbox, version: str) -> int:
    setup = inbox.first()
    logger = logging.getLogger("aethermind")
    logger.addHandler(_Forwarding(outbox))
    logger.setLevel(setup.log_level)
    try:
        check_version(version)
        engine = _load(setup, outbox)
        gc.collect()
        gc.freeze()  # what was loaded stays: to look for garbage in it would make a step wait
    except Exception as error:
        if not isinstance(error, AetherMindError):
            _log.exception("the model could not be loaded")
        outbox.failure = error if isinstance(error, AetherMindError) else EngineDeadError(in_words(error))
        _say_all(outbox, inbox.sock)
        return 1
    try:
        _Worker(engine, inbox, outbox).run()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        raise
    except Exception as error:
        _log.exception("the engine failed")
        outbox.failure = EngineDeadError(f"The engine failed: {in_words(error)}")
        _say_all(outbox, inbox.sock)
        return 1
    finally:
        engine.close()
    return 0


def _load(setup: Setup, outbox: Outbox) -> Engine:
    started = time.perf_counter()

    def show_progress(done: int, total: int) -> None:
        outbox.progress = (done, total)
        outbox.flush()

    planned = plan_model(Runtime.boot(), setup.model, setup.config)
    engine = Engine.load(planned, show_progress)
    outbox.loaded = Loaded(
        describe_model(engine, time.perf_counter() - started),
        read_sampling_defaults(planned.generation),
        planned.model.config.vocab_size,
    )
    log_loaded(outbox.loaded.info)
    return engine


class _Inbox:
    """What is asked, without waiting for it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unpacker = Unpacker()
        self._has_come = select.poll()
        self._has_come.register(sock, select.POLLIN)

    def first(self) -> Setup:
        """Wait for the first message."""
        while True:
            select.select([self.sock], [], [])
            for message in self.take():
                assert isinstance(message, Setup)
                return message

    def take(self) -> list[Any]:
        """The messages that have come. EOFError when no more will."""
        if not self._has_come.poll(0):  # a quarter of what an exception costs, in every step
            return []
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise EOFError
        return list(self._unpacker.feed(data))


class _Worker:
    """The loop: commands, a step, news."""

    def __init__(self, engine: Engine, inbox: _Inbox, outbox: Outbox) -> None:
        self._engine = engine
        self._inbox = inbox
        self._outbox = outbox
        self._preparing = Preparing()
        self._told_stats_s = 0.0

    def run(self) -> None:
        """Return when told to close."""
        engine, outbox = self._engine, self._outbox
        while True:
            self._tell_stats()
            is_all_said = outbox.flush()
            if not engine.has_unfinished:
                most_s = _POLL_S if self._preparing else _IDLE_S
                select.select([self._inbox.sock], [] if is_all_said else [self._inbox.sock], [], most_s)
            for message in self._inbox.take():
                if isinstance(message, Close):
                    return
                self._obey(message)
            self._add_prepared()
            if engine.has_unfinished:
                outbox.put(engine.advance())

    def _tell_stats(self) -> None:
        """With other news, and now and then without: silence would be taken for a step that never ends."""
        now = time.monotonic()
        age_s = now - self._told_stats_s
        is_wanted = age_s >= _SILENCE_S or (age_s >= _STATS_EVERY_S and self._outbox.has_news)
        if is_wanted or not self._engine.has_unfinished:
            self._outbox.stats = EngineStats.of(self._engine)
            self._told_stats_s = now

    def _obey(self, message: Add | Abort | Forget | Ask) -> None:
        match message:
            case Add():
                made = self._engine.prepare(message.params)
                if made is None or made.done():
                    self._add(message, made)
                else:
                    self._preparing.hold(message, made)
            case Abort() | Forget() if self._preparing.hear(message):
                pass
            case Abort(handle):
                name = self._outbox.name_of(handle)
                if name is not None and (ended := self._engine.abort(name)) is not None:
                    self._outbox.put([ended])
            case Forget(handle):
                if (name := self._outbox.name_of(handle)) is not None:
                    self._engine.abort(name)  # nothing where it has finished
                    self._outbox.drop(handle)
            case Ask(number, what, arguments):
                self._outbox.reply(self._answer(number, what, arguments))
            case _:
                assert_never(message)

    def _add_prepared(self) -> None:
        for request, made, is_aborted in self._preparing.take():
            self._add(request, made)
            if is_aborted:
                self._obey(Abort(request.handle))

    def _add(self, request: Add, made: Future[TokenGuide] | None) -> None:
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
                guide=None if made is None else made.result(),
            )
        except Exception as error:
            self._outbox.drop(request.handle)
            self._outbox.refuse(request.handle, _told(error))

    def _answer(self, number: int, what: str, arguments: dict[str, Any]) -> Reply:
        try:
            assert what in CALLS, f"nobody asks an engine for {what}"
            return Reply(number, getattr(self._engine, what)(**arguments))
        except Exception as error:
            return Reply(number, None, _told(error))


class _Forwarding(logging.Handler):
    """Records go to the parent, whose handlers say what becomes of them."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._outbox.log(LogLine(record.levelno, record.name, record.getMessage(), record.created, traceback))


def _told(error: Exception) -> Exception:
    """An error as the other process gets it; what nobody foresaw is logged here, where its traceback is."""
    if not isinstance(error, AetherMindError):
        _log.error("a request failed", exc_info=error)
    return error


def _say_all(outbox: Outbox, sock: socket.socket) -> None:
    """Wait for the reader, but not for ever."""
    until = time.monotonic() + _LAST_WORDS_S
    while not outbox.flush() and (left := until - time.monotonic()) > 0:
        select.select([], [sock], [], left)


def _low(fd: int) -> int:
    """The same file under the lowest number there is, for this process alone: `select` takes none from 1024 on, which
    a parent with many connections gives.
    """
    low = os.dup(fd)
    os.close(fd)
    return low


def _die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies, even in the middle of a step (Linux: prctl(2)).

    Elsewhere the end of the socket is noticed between two steps.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(0)
