"""Engine processes as their parent sees them: they are started, watched, and restarted with backoff when they end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from aethermind.engine.process.protocol import Close, EngineOutputs, Loaded, LogLine, Setup, Unpacker, pack
from aethermind.engine.process.start import blocked_signals, child_command, child_environment, describe_exit
from aethermind.errors import EngineDeadError, InvalidArgumentError
from aethermind.log import get_logger

__all__ = ["Child", "LaunchProcess", "RestartPolicy", "StandbyProcess", "Supervisor"]

LaunchProcess = Callable[[Callable[[EngineOutputs], None], Path], Awaitable["Child"]]
"""Starts an engine process in a directory; the function receives its messages."""

_log = get_logger(__name__)

_GRACE_S = 2.0
"""Seconds that a process gets to exit once it has closed its socket."""

_USUAL_REASONS: dict[int, str] = {
    signal.SIGKILL: " The system does so where memory runs out.",
    signal.SIGBUS: " The system does so where a file in use, such as the model's, was shortened.",
}
"""The usual reason why a process is killed by a signal, as a sentence."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When an engine process that ended is restarted, and when one that hangs is killed. Times are in seconds."""

    max_restarts: int = 5
    """Maximum number of restarts in a row. A process that served a request, or was up for `stable_s`, resets the count.
    """
    first_delay_s: float = 1.0
    """Delay before the first restart in a row; it doubles with each further restart."""
    max_delay_s: float = 30.0
    stable_s: float = 60.0
    stall_timeout_s: float = 600.0
    """Maximum time of a step: a process that sends nothing for so long while a request is open is killed. 0: no limit.
    """
    close_timeout_s: float = 5.0
    """Time to finish the current step, and to save each session, when the engine is closed."""
    advice: str = "restart the server"
    """What the user should do when the process is not restarted any more; ends an error message."""

    def __post_init__(self) -> None:
        for name in ("max_restarts", "first_delay_s", "max_delay_s", "stable_s", "stall_timeout_s", "close_timeout_s"):
            if not getattr(self, name) >= 0:  # also rejects nan
                raise InvalidArgumentError(f"{name} should be 0 or more, got {getattr(self, name)!r}.", param=name)

    def delay_s(self, num_failures: int) -> float:
        """Return the delay before the next restart, after `num_failures` failures in a row."""
        return min(self.first_delay_s * 2.0 ** min(num_failures - 1, 30), self.max_delay_s)


class Supervisor:
    """Runs one engine process at a time, and restarts it. Mutable; belongs to an event loop.

    `on_outputs` receives the messages of a process. `on_up` is called when a process is ready to serve. `on_down` is
    called when it has ended, with an error that says why and what happens next. `is_busy` returns whether a request is
    open.
    """

    def __init__(
        self,
        setup: Setup,
        policy: RestartPolicy,
        *,
        on_outputs: Callable[[EngineOutputs], None],
        on_up: Callable[[Loaded], None],
        on_down: Callable[[EngineDeadError], None],
        is_busy: Callable[[], bool],
        launch: LaunchProcess | None = None,
    ) -> None:
        """`launch` starts a process, by default `Child.launch`."""
        self._setup = setup
        self._launch = Child.launch if launch is None else launch
        self._policy = policy
        self._on_outputs = on_outputs
        self._on_up = on_up
        self._on_down = on_down
        self._is_busy = is_busy
        self._directory = Path.cwd()
        self._child: Child | None = None
        self._failure: Exception | None = None
        self._up_since: float | None = None
        self._is_healthy = False
        self._last_message_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        """The id of the current process, None while there is none."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the first process and wait until it is ready; raises the error that prevents that."""
        ready = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._supervise(ready))]
        if self._policy.stall_timeout_s:
            self._tasks.append(asyncio.create_task(self._watch()))
        await ready

    def send(self, message: object) -> None:
        """Send a message to the process; it is dropped while there is none."""
        if self._child is not None:
            self._child.send(message)

    def mark_healthy(self) -> None:
        """Note that the process has served a request: if it ends, the count of failures in a row starts again."""
        self._is_healthy = True

    async def close(self) -> None:
        """End the process and stop restarting it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._child is not None:
            await self._child.close(self._policy.close_timeout_s if self._up_since is not None else 0.0)
            self._child = None

    async def _supervise(self, ready: asyncio.Future[None]) -> None:
        """Run processes until the maximum of restarts. An unexpected error is reported like the end of a process."""
        try:
            await self._restart_until_exhausted(ready)
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
                return
            _log.exception("%s: supervising the engine process failed", self._setup.model)
            self._on_down(EngineDeadError("The engine process is not supervised any more; restart the server."))

    async def _restart_until_exhausted(self, ready: asyncio.Future[None]) -> None:
        num_failures = 0
        while True:
            error = await self._run_one(ready)
            if not ready.done():
                ready.set_exception(error)
                return
            is_stable = self._up_since is not None and time.monotonic() - self._up_since >= self._policy.stable_s
            num_failures = 1 if is_stable or self._is_healthy else num_failures + 1
            if num_failures > self._policy.max_restarts:
                times = "once" if num_failures == 1 else f"{num_failures} times in a row"
                self._report_down(f"{error} It failed {times} and is not started again; {self._policy.advice}.")
                return
            delay_s = self._policy.delay_s(num_failures)
            self._report_down(f"{error} It is started again in {delay_s:g} s.")
            await asyncio.sleep(delay_s)
            _log.warning("%s: starting the engine process again (%d)", self._setup.model, num_failures)

    def _report_down(self, message: str) -> None:
        _log.error("%s: %s", self._setup.model, message)
        self._on_down(EngineDeadError(message))

    async def _run_one(self, ready: asyncio.Future[None]) -> Exception:
        """Run one process from start to end; returns why it ended."""
        self._failure, self._up_since, self._is_healthy = None, None, False

        def receive(outputs: EngineOutputs) -> None:
            self._last_message_s = time.monotonic()
            for line in outputs.logs:
                _forward_log(line)
            if outputs.failure is not None:
                self._failure = outputs.failure
            if outputs.loaded is not None:
                self._up_since = self._last_message_s
                self._on_up(outputs.loaded)
            self._on_outputs(outputs)
            if outputs.loaded is not None and not ready.done():
                ready.set_result(None)

        try:
            self._child = child = await self._launch(receive, self._directory)
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
        phase = "" if self._up_since is not None else " while it loaded the model"
        return EngineDeadError(f"The engine process {describe_exit(code)}{phase}.{_USUAL_REASONS.get(-code, '')}")

    async def _watch(self) -> None:
        """Kill a process whose step exceeds `stall_timeout_s`."""
        limit = self._policy.stall_timeout_s
        period = limit / 8
        idle_since = checked_at = time.monotonic()
        while True:
            await asyncio.sleep(period)
            last_checked_at, checked_at = checked_at, time.monotonic()
            was_suspended = (
                checked_at - last_checked_at > 2 * period
            )  # this process itself was stopped or busy, and read nothing
            if was_suspended or self._child is None or self._up_since is None or not self._is_busy():
                idle_since = checked_at
            elif checked_at - max(idle_since, self._last_message_s) > limit:
                _log.error("%s: the engine process said nothing for %g s and is killed", self._setup.model, limit)
                self._child.is_stalled = True
                self._child.kill()


def _forward_log(line: LogLine) -> None:
    """Pass a log record of the engine process to the handlers of this process."""
    logger = logging.getLogger(line.name)
    if logger.isEnabledFor(line.level):
        record = logger.makeRecord(line.name, line.level, "", 0, line.text, (), None)
        record.created, record.exc_text = line.created, line.traceback
        with suppress(Exception):  # like logging itself: a bad record is not fatal
            logger.handle(record)


class Child:
    """One running engine process and the socket to it, which has no address that other processes could open."""

    def __init__(self, process: Process, transport: asyncio.WriteTransport, listener: ChildListener) -> None:
        self._process = process
        self._transport = transport
        self._listener = listener
        self.is_stalled = False
        """Whether it was killed because a step took too long."""

    @classmethod
    async def launch(cls, on_outputs: Callable[[EngineOutputs], None], directory: Path) -> Child:
        """Spawn a process, which waits for its `Setup`. `on_outputs` receives its messages.

        It has this process's import path and the working directory `directory`, and is killed when the calling thread
        ends.
        """
        ours, theirs = socket.socketpair()
        listener = ChildListener(on_outputs)
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: listener, sock=ours)
            try:
                with blocked_signals():
                    process = await asyncio.create_subprocess_exec(
                        *child_command("aethermind.engine.process", theirs.fileno(), os.getpid()),
                        stdin=DEVNULL,
                        stdout=DEVNULL,
                        cwd=directory,
                        env=child_environment(),
                        pass_fds=[theirs.fileno()],
                    )
            except BaseException:
                transport.close()
                raise
        return cls(process, transport, listener)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has its end of the socket open."""
        return not self._listener.disconnected.is_set()

    def pass_outputs_to(self, on_outputs: Callable[[EngineOutputs], None]) -> None:
        """Pass later messages of the process to another function."""
        self._listener.on_outputs = on_outputs

    def send(self, message: object) -> None:
        """Send a message without waiting. InvalidArgumentError if it cannot be encoded."""
        data = pack(message)
        if not self._transport.is_closing():
            self._transport.write(data)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> int:
        """Wait until the process has exited and is reaped; returns its exit code, negative for a signal."""
        await self._listener.disconnected.wait()
        try:
            async with asyncio.timeout(_GRACE_S):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def close(self, timeout_s: float) -> None:
        """Stop the process after the current step; kill it when it has sent nothing for `timeout_s` seconds.

        The process sends a message after each session that it saves.
        """
        self.send(Close())
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(timeout_s) as limit:

                def extend() -> None:
                    if not limit.expired():
                        limit.reschedule(now() + timeout_s)

                self._listener.on_data = extend
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()
        finally:
            self._listener.on_data = None
            self.kill()  # without effect unless this call was cancelled
            self._transport.close()


class ChildListener(asyncio.Protocol):
    """Receives the messages of an engine process; `on_data` is called for any data, if it is set."""

    def __init__(self, on_outputs: Callable[[EngineOutputs], None]) -> None:
        self.on_outputs = on_outputs
        self.disconnected = asyncio.Event()
        self.on_data: Callable[[], object] | None = None
        self._unpacker = Unpacker()

    def data_received(self, data: bytes) -> None:
        if self.on_data is not None:
            self.on_data()
        for outputs in self._unpacker.feed(data):
            self.on_outputs(cast(EngineOutputs, outputs))

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnected.set()


_DELAY_S = 1.5
"""Seconds until the next spare process is started, because the first request of a model needs the CPU."""


class StandbyProcess:
    """Keeps one spare engine process while the context is open; belongs to an event loop. Mutable.

    A spare process has started Python and loaded the plugins, but no model. That takes longer than mapping the packed
    weights of a small model, so the next engine starts faster.
    """

    def __init__(self) -> None:
        self._spare: asyncio.Task[Child] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> StandbyProcess:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                await (await spare).close(0.0)

    async def launch(self, on_outputs: Callable[[EngineOutputs], None], directory: Path) -> Child:
        """Return the spare process, or a new one if there is none; another spare process is started soon.

        OSError if no process can be started.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                child = await spare
                if child.is_running:
                    child.pass_outputs_to(on_outputs)
                    self._start_later()
                    return child
                await child.close(0.0)
        self._start_later()
        return await Child.launch(on_outputs, directory)

    def _start_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._spare is None:
            self._spare = asyncio.create_task(Child.launch(_ignore, Path.cwd()), name="standby engine process")


def _ignore(_: EngineOutputs) -> None:
    """Ignore messages: a spare process sends none that matter."""
