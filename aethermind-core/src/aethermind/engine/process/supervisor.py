"""Keeping an engine process alive: its end is noticed at once, told, and followed by another try, but not for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aethermind.engine.process.child import Child
from aethermind.engine.process.messages import Loaded, LogLine, News, Setup
from aethermind.engine.process.start import describe_exit
from aethermind.errors import EngineDeadError, InvalidArgumentError
from aethermind.log import get_logger

__all__ = ["RestartPolicy", "Supervisor"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that ended is started again, and when one that says nothing is ended. Times are in seconds."""

    max_restarts: int = 5
    """How often in a row; a process that finished an answer, or was up for `stable_s`, begins a new row."""
    first_delay_s: float = 1.0
    """Before the first restart of a row; each one after that waits twice as long."""
    max_delay_s: float = 30.0
    stable_s: float = 60.0
    stall_timeout_s: float = 600.0
    """How long a process may be silent while somebody waits for it, which is how long a step may take; 0 is for ever.
    """
    close_timeout_s: float = 5.0
    """What it gets for the step under way when it is told to stop."""

    def __post_init__(self) -> None:
        for name in ("max_restarts", "first_delay_s", "max_delay_s", "stable_s", "stall_timeout_s", "close_timeout_s"):
            if not getattr(self, name) >= 0:  # nan is neither
                raise InvalidArgumentError(f"{name} should be 0 or more, got {getattr(self, name)!r}.")

    def delay_s(self, failures: int) -> float:
        """What to wait after so many failures in a row."""
        return min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.max_delay_s)


class Supervisor:
    """Runs one process after the other. Mutable; belongs to an event loop.

    `on_news` gets what a process says; `on_up` is called when one serves; `on_down` when it no longer does, with the
    reason and what happens next; `is_busy` is asked whether anybody waits for it.
    """

    def __init__(
        self,
        setup: Setup,
        policy: RestartPolicy,
        *,
        on_news: Callable[[News], None],
        on_up: Callable[[Loaded], None],
        on_down: Callable[[EngineDeadError], None],
        is_busy: Callable[[], bool],
    ) -> None:
        self._setup = setup
        self._policy = policy
        self._on_news = on_news
        self._on_up = on_up
        self._on_down = on_down
        self._is_busy = is_busy
        self._directory = Path.cwd()
        self._child: Child | None = None
        self._failure: Exception | None = None
        self._up_since: float | None = None
        self._has_proved_itself = False
        self._heard = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        """The id of the process there is."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the first process and wait until it serves; raises what keeps it from that."""
        first = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._keep_alive(first))]
        if self._policy.stall_timeout_s:
            self._tasks.append(asyncio.create_task(self._watch()))
        await first

    def send(self, message: object) -> None:
        """Say something to the process, if there is one."""
        if self._child is not None:
            self._child.send(message)

    def vouch(self) -> None:
        """The process has done what it is for: should it end, that is no sign that the next one would do no better."""
        self._has_proved_itself = True

    async def close(self) -> None:
        """End the process, and try no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._child is not None:
            await self._child.close(self._policy.close_timeout_s if self._up_since is not None else 0.0)
            self._child = None

    async def _keep_alive(self, first: asyncio.Future[None]) -> None:
        """Processes one after the other, until that is given up. A bug in here is told like the end of a process."""
        try:
            await self._restart_as_long_as_it_helps(first)
        except Exception as error:
            if not first.done():
                first.set_exception(error)
                return
            _log.exception("%s: watching over the engine process failed", self._setup.model)
            self._on_down(EngineDeadError("Nobody watches over the engine process any more; restart the server."))

    async def _restart_as_long_as_it_helps(self, first: asyncio.Future[None]) -> None:
        num_failures = 0
        while True:
            error = await self._live(first)
            if not first.done():
                first.set_exception(error)
                return
            is_stable = self._up_since is not None and time.monotonic() - self._up_since >= self._policy.stable_s
            num_failures = 1 if is_stable or self._has_proved_itself else num_failures + 1
            if num_failures > self._policy.max_restarts:
                times = "once" if num_failures == 1 else f"{num_failures} times in a row"
                self._tell(f"{error} It failed {times} and is not started again; restart the server.")
                return
            delay_s = self._policy.delay_s(num_failures)
            self._tell(f"{error} It is started again in {delay_s:g} s.")
            await asyncio.sleep(delay_s)
            _log.warning("%s: starting the engine process again (%d)", self._setup.model, num_failures)

    def _tell(self, message: str) -> None:
        _log.error("%s: %s", self._setup.model, message)
        self._on_down(EngineDeadError(message))

    async def _live(self, first: asyncio.Future[None]) -> Exception:
        """One process from start to end; returns why it ended."""
        self._failure, self._up_since, self._has_proved_itself = None, None, False

        def take(news: News) -> None:
            self._heard = time.monotonic()
            for line in news.logs:
                _log_again(line)
            if news.failure is not None:
                self._failure = news.failure
            if news.loaded is not None:
                self._up_since = self._heard
                self._on_up(news.loaded)
            self._on_news(news)
            if news.loaded is not None and not first.done():
                first.set_result(None)

        try:
            self._child = child = await Child.launch(take, self._directory)
        except OSError as error:
            return EngineDeadError(f"The engine process could not be started: {error.strerror or error}.")
        child.send(self._setup)
        code = await child.ended()
        self._child = None
        if self._failure is not None:
            return self._failure
        if child.is_stalled:
            limit_s = self._policy.stall_timeout_s
            return EngineDeadError(f"The engine process said nothing for {limit_s:g} s in a step, and was killed.")
        doing = "" if self._up_since is not None else " while it loaded the model"
        return EngineDeadError(f"The engine process {describe_exit(code)}{doing}.")

    async def _watch(self) -> None:
        """Kill a process that takes longer than a step may."""
        limit = self._policy.stall_timeout_s
        period = limit / 8
        idle = looked = time.monotonic()
        while True:
            await asyncio.sleep(period)
            before, looked = looked, time.monotonic()
            was_away = looked - before > 2 * period  # this process was stopped or busy itself, and heard nobody
            if was_away or self._child is None or self._up_since is None or not self._is_busy():
                idle = looked
            elif looked - max(idle, self._heard) > limit:
                _log.error("%s: the engine process said nothing for %g s and is killed", self._setup.model, limit)
                self._child.is_stalled = True
                self._child.kill()


def _log_again(line: LogLine) -> None:
    """Hand a record of the other process to this one's handlers."""
    logger = logging.getLogger(line.name)
    if logger.isEnabledFor(line.level):
        record = logger.makeRecord(line.name, line.level, "", 0, line.text, (), None)
        record.created, record.exc_text = line.created, line.traceback
        with suppress(Exception):  # as logging does: a record is no reason to fail
            logger.handle(record)
