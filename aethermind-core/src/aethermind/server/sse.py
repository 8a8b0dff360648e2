"""Server-sent events (WHATWG HTML, 9.2): JSON objects as they come, signs of life between them, a last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from aethermind.server.openai.errors import as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aethermind.server.framing import Framing

__all__ = ["EventStream", "KEEP_ALIVE_S", "until_gone"]

KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""

_KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """Sends each object as an event, then a last word. An error on the way is an event too, the last before it.

    `resources` are closed when the stream ends, however it ends: finished, the client gone, or reading too slowly.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any]],
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
        async with self._resources:
            sending = asyncio.create_task(self._send(scope, send))
            leaving = asyncio.create_task(until_gone(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and isinstance(sending.exception(), _SlowReaderError):
                    scope["state"]["record"].error_code = "slow_reader"
                    scope["state"]["cut"]()
                elif sending.done():
                    sending.result()
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.wait({sending, leaving})

    async def _send(self, scope: Scope, send: Send) -> None:
        async def write(data: bytes, *, is_last: bool = False) -> None:
            try:
                async with asyncio.timeout(self._slow_reader_timeout_s):
                    await send({"type": "http.response.body", "body": data, "more_body": not is_last})
            except TimeoutError:
                raise _SlowReaderError from None

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        upcoming: asyncio.Future[dict[str, Any]] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(self._events))
                while not (await asyncio.wait({upcoming}, timeout=KEEP_ALIVE_S))[0]:
                    await write(_KEEP_ALIVE)
                await write(self._framing.encode(upcoming.result()))
        except StopAsyncIteration:
            pass
        except _SlowReaderError:
            raise  # and nothing is said: what was sent stays without an end, so that it is not taken for whole
        except Exception as error:
            failure = as_api_error(error)
            scope["state"]["record"].error_code = failure.code
            await write(self._framing.encode(self._framing.failure(failure)))
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                await asyncio.wait({upcoming})
        await write(self._framing.last_word, is_last=True)


class _SlowReaderError(Exception):
    """The client has not read for too long."""


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
