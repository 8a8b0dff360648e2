"""Server-sent events (WHATWG HTML, 9.2): JSON objects as they come, signs of life between them, a last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from fastapi.responses import Response

from aethermind.server.openai.errors import as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aethermind.server.framing import Event, Framing

__all__ = ["EventStream", "KEEP_ALIVE_S", "until_gone"]

KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""

_KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """Sends events, those that come together at once, then a last word. An error on the way is an event too, the last
    before it.

    `resources` are closed when the stream ends, however it ends: finished, the client gone, or reading too slowly.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[list[Event]],
        resources: AsyncExitStack,
        *,
        framing: Framing,
        slow_reader_timeout_s: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._framing = framing
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        writer = _Writer(send, state["send_part"], state["all_sent"], self._slow_reader_timeout_s)
        async with self._resources:
            # One task for all events of a stream: one for each of them would cost as much as the event itself.
            sending = asyncio.create_task(self._send(scope, writer))
            others = {asyncio.create_task(until_gone(receive)), asyncio.create_task(writer.watch())}
            try:
                done, _ = await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
                if any(isinstance(task.exception(), _SlowReaderError) for task in done):
                    state["record"].error_code = "slow_reader"
                    state["cut"]()
                elif sending in done:
                    sending.result()
            finally:
                for task in (sending, *others):
                    task.cancel()
                await asyncio.wait({sending, *others})

    async def _send(self, scope: Scope, writer: _Writer) -> None:
        await writer.start(self.status_code, self.raw_headers)
        try:
            async for events in self._events:
                if events:
                    await writer.write(self._framing.written(events))
        except Exception as error:
            failure = as_api_error(error)
            scope["state"]["record"].error_code = failure.code
            await writer.write(self._framing.encode(self._framing.failure(failure)))
        await writer.await_reader()
        await writer.write(self._framing.last_word, is_last=True)


class _Writer:
    """A response: events from one task, while another watches over it.

    Its start passes the middlewares, which have a say in headers; its parts go by the connection's own `send_part`.
    """

    def __init__(self, send: Send, send_part: Send, all_sent: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        self._send = send
        self._send_part = send_part
        self._all_sent = all_sent
        self._timeout_s = timeout_s
        self._now = asyncio.get_running_loop().time
        self._last_s = self._now()
        self._waits_since_s: float | None = None
        """Since when a part waits for the client to read; None while none does."""

    async def start(self, status: int, headers: Any) -> None:
        await self._watched(self._send({"type": "http.response.start", "status": status, "headers": headers}))

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part, however long it takes: `watch` knows when that is too long."""
        part = {"type": "http.response.body", "body": data, "more_body": not is_last}
        await self._watched(self._send_part(part))

    async def await_reader(self) -> None:
        """Wait until hardly anything is left to be read: who is slower than the end of a server would miss it."""
        await self._watched(self._all_sent())

    async def _watched(self, work: Awaitable[None]) -> None:
        self._waits_since_s = self._now()
        await work
        self._last_s, self._waits_since_s = self._waits_since_s, None

    async def watch(self) -> NoReturn:
        """Write a comment after each KEEP_ALIVE_S of silence; _SlowReaderError where the client does not read.

        It looks as rarely as it may: a timer around every part would cost more than the part.
        """
        while True:
            now, since_s = self._now(), self._waits_since_s
            if since_s is not None:
                wait_s = since_s + self._timeout_s - now
                if wait_s <= 0:
                    raise _SlowReaderError
            else:
                wait_s = min(self._last_s + KEEP_ALIVE_S - now, self._timeout_s)
                if wait_s <= 0:
                    await self._keep_alive()
                    continue
            await asyncio.sleep(wait_s)

    async def _keep_alive(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send_part({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
        except TimeoutError:
            raise _SlowReaderError from None
        self._last_s = self._now()


class _SlowReaderError(Exception):
    """The client has not read for too long."""


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
