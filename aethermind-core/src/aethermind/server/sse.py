"""Server-sent events (WHATWG HTML, 9.2): JSON objects as they come, signs of life between them, a last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from aethermind.server.cancellation import CancelScope
from aethermind.server.openai.errors import as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aethermind.server.framing import EventBatch, Framing
    from aethermind.server.protocol import SendChunk

__all__ = ["EventStream", "KEEP_ALIVE_S"]

KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""

_SMALL_BYTES = 4096
"""What the system takes at once. The last events of who reads slowly may be all there are."""

_KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """Sends events, those that come together at once, and a last word with the last. An error on the way is an event
    too, and the last one.

    `resources` are closed when the stream ends, however it ends: finished, the client gone, or reading too slowly.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[EventBatch],
        resources: AsyncExitStack,
        *,
        framing: Framing,
        send_timeout_s: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._framing = framing
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        writer = _Writer(send, state["send_chunk"], state["flush"], self._send_timeout_s)
        async with self._resources, writer:
            with CancelScope(state["disconnected"], writer.is_too_late):
                await self._send(scope, writer)
            if writer.is_too_late.done():
                state["record"].error_code = "slow_reader"
                state["abort"]()

    async def _send(self, scope: Scope, writer: _Writer) -> None:
        await writer.start(self.status_code, self.raw_headers)
        try:
            async for batch in self._events:
                if batch.is_last:
                    await writer.end(self._framing.written(batch.events), self._framing.last_word)
                elif batch.events:
                    await writer.write(self._framing.written(batch.events))
        except Exception as error:
            failure = as_api_error(error)
            scope["state"]["record"].error_code = failure.code
            await writer.end(self._framing.encode(self._framing.failure(failure)), self._framing.last_word)


class _Writer:
    """A response, and a timer that watches over it while the context is open. Mutable.

    Its start passes the middlewares, which have a say in headers; its parts go by the connection's own `send_chunk`.
    `is_too_late` is done when the client has not read for too long.
    """

    def __init__(
        self, send: Send, send_chunk: SendChunk, flush: Callable[[], Awaitable[None]], timeout_s: float
    ) -> None:
        self._send = send
        self._send_chunk = send_chunk
        self._flush = flush
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._last_s = self._now()
        self._waits_since_s: float | None = None
        """Since when a part waits for the client to read; None while none does."""
        self._timer: asyncio.TimerHandle | None = None
        self._sign_of_life: asyncio.Task[None] | None = None
        self.is_too_late: asyncio.Future[None] = self._loop.create_future()

    async def __aenter__(self) -> None:
        self._look()

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sign_of_life is not None:
            self._sign_of_life.cancel()
            await asyncio.wait({self._sign_of_life})

    async def start(self, status: int, headers: Any) -> None:
        await self._watched(self._send({"type": "http.response.start", "status": status, "headers": headers}))

    async def write(self, data: bytes) -> None:
        """Send a part, however long it takes: the timer knows when that is too long."""
        self._waits_since_s = self._now()
        await self._send_chunk(data)
        self._last_s, self._waits_since_s = self._waits_since_s, None

    async def end(self, data: bytes, last_word: bytes) -> None:
        """Send the last part, with the last word if it is small, and that once hardly anything is left to be read: who
        is slower than the end of a server would miss it.
        """
        if len(data) > _SMALL_BYTES:
            await self.write(data)
            data = b""
        await self._watched(self._flush())
        await self._watched(self._send_chunk(data + last_word, is_last=True))

    async def _watched(self, work: Awaitable[None]) -> None:
        self._waits_since_s = self._now()
        await work
        self._last_s, self._waits_since_s = self._waits_since_s, None

    def _look(self) -> None:
        """Have a comment written after each KEEP_ALIVE_S of silence, and see whether the client reads.

        It looks as rarely as it may: a timer around every part would cost more than the part.
        """
        now, since_s = self._now(), self._waits_since_s
        if since_s is not None:
            wait_s = since_s + self._timeout_s - now
            if wait_s <= 0:
                self.is_too_late.set_result(None)
                return
        else:
            wait_s = min(self._last_s + KEEP_ALIVE_S - now, self._timeout_s)
            if wait_s <= 0:
                self._sign_of_life = self._loop.create_task(self._keep_alive())
                return
        self._timer = self._loop.call_later(wait_s, self._look)

    async def _keep_alive(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send_chunk(_KEEP_ALIVE)
        except TimeoutError:
            self.is_too_late.set_result(None)
            return
        self._last_s = self._now()
        self._look()
