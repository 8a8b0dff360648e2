"""One engine process as its parent holds it: a private socket to it, what it says, and how it ended."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path
from typing import cast

from aethermind.engine.process.messages import Close, News
from aethermind.engine.process.start import child_command, child_environment, signals_held
from aethermind.engine.process.wire import Unpacker, pack

__all__ = ["Child"]

_GRACE_S = 2.0
"""How long a process may take to end once its socket has; its work is lost anyway."""


class Child:
    """A running process. Only it has the other end of the socket, which has no name that anyone could open."""

    def __init__(self, process: Process, transport: asyncio.WriteTransport, hung_up: asyncio.Event) -> None:
        self._process = process
        self._transport = transport
        self._hung_up = hung_up
        self.is_stalled = False
        """Whether it is killed because it took too long."""

    @classmethod
    async def launch(cls, on_news: Callable[[News], None], directory: Path) -> Child:
        """Start a process, fresh and not a fork, which waits for its `Setup`. `on_news` gets what it says.

        It has this process's import path, works in `directory`, and lives no longer than the calling thread.
        """
        ours, theirs = socket.socketpair()
        hung_up = asyncio.Event()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: _Listener(on_news, hung_up), sock=ours
            )
            try:
                with signals_held():
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
        return cls(process, transport, hung_up)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Say something, without waiting for it to be heard. InvalidArgumentError for what cannot cross."""
        data = pack(message)
        if not self._transport.is_closing():
            self._transport.write(data)

    def kill(self) -> None:
        """End it now, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> int:
        """Wait until it has ended and is reaped; returns its exit code, below 0 that of a signal."""
        await self._hung_up.wait()
        try:
            async with asyncio.timeout(_GRACE_S):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def close(self, timeout_s: float) -> None:
        """Have it stop after the step under way, or kill it when that takes too long."""
        self.send(Close())
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()
        finally:
            self.kill()  # nothing if it has ended, as it has unless this was cancelled
            self._transport.close()


class _Listener(asyncio.Protocol):
    def __init__(self, on_news: Callable[[News], None], hung_up: asyncio.Event) -> None:
        self._on_news = on_news
        self._hung_up = hung_up
        self._unpacker = Unpacker()

    def data_received(self, data: bytes) -> None:
        for news in self._unpacker.feed(data):
            self._on_news(cast(News, news))

    def connection_lost(self, exc: Exception | None) -> None:
        self._hung_up.set()
