"""A streamed response of JSON objects: server-sent events (WHATWG HTML, 9.2) or lines, keep-alives, a terminator."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.responses import Response

from aethermind.server.cancellation import CancelScope
from aethermind.server.openai.errors import as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aethermind.server.http_protocol import SendChunk
    from aethermind.server.openai.errors import ApiError

__all__ = ["Event", "EventBatch", "EventStream", "Framing", "KEEP_ALIVE_S", "NAMED", "NDJSON", "TextEvents", "UNNAMED"]

Event = dict[str, Any] | bytes
"""An event to send: a JSON object, or an event that is encoded already."""


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_TEXT_PLACEHOLDER = uuid.uuid4().hex
"""A random text in place of an event's own, at which the encoded event is split."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How an endpoint encodes its events, its event for an error, and the bytes at the end of a stream.

    `encode_text` encodes a string as `encode` does. `comment` encodes a text that clients ignore, between two events.
    """

    encode: Callable[[dict[str, Any]], bytes]
    failure: Callable[[ApiError], dict[str, Any]]
    terminator: bytes
    encode_text: Callable[[str], str] = encode_basestring
    comment: Callable[[str], bytes] = lambda text: b": " + text.encode() + b"\n\n"
    media_type: str = "text/event-stream"

    def encode_events(self, events: Iterable[Event]) -> bytes:
        """The events encoded one after another."""
        return b"".join([event if isinstance(event, bytes) else self.encode(event) for event in events])


class EventBatch(NamedTuple):
    """Events that are sent together, whether they are the last, and the framing from here on, if it changes."""

    events: list[Event]
    is_last: bool = False
    framing: Framing | None = None


class TextEvents:
    """Encodes events that differ in one text only. The JSON before and after the text is encoded once per choice."""

    def __init__(self, framing: Framing, make_event: Callable[[int, str], dict[str, Any]]) -> None:
        """`make_event(index, text)` returns the event that appends `text` to choice `index`."""
        self._framing = framing
        self._make_event = make_event
        self._prefixes_and_suffixes: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, index: int, text: str) -> bytes:
        """The encoded event that appends `text` to choice `index`."""
        prefix_and_suffix = self._prefixes_and_suffixes.get(index)
        if prefix_and_suffix is None:
            prefix, suffix = self._framing.encode(self._make_event(index, _TEXT_PLACEHOLDER)).split(
                b'"%s"' % _TEXT_PLACEHOLDER.encode()
            )
            prefix_and_suffix = self._prefixes_and_suffixes[index] = (prefix, suffix)
        return prefix_and_suffix[0] + self._framing.encode_text(text).encode() + prefix_and_suffix[1]


UNNAMED = Framing(
    lambda event: b"data: " + _json(event).encode() + b"\n\n", lambda error: error.body(), b"data: [DONE]\n\n"
)
"""Events without a name, and `[DONE]` at the end: completions and chat completions."""

NAMED = Framing(
    lambda event: b"event: " + event["type"].encode() + b"\ndata: " + _json(event).encode() + b"\n\n",
    lambda error: {"type": "error", "code": error.code, "message": error.message, "param": error.param},
    b"",
)
"""Events named by their type, without a terminator: the Responses API."""

NDJSON = Framing(
    lambda event: json.dumps(event, separators=(",", ":")).encode() + b"\n",
    lambda error: {"error": error.message},
    b"",
    encode_text=encode_basestring_ascii,
    comment=lambda text: b" ",
    media_type="application/x-ndjson",
)
"""One JSON object a line: Ollama's API. A space before an object is the only text that all clients ignore.

The lines are ASCII, because Python's clients also split them at U+0085, U+2028 and U+2029.
"""


KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection open."""

_MAX_UNBLOCKED_BYTES = 4096
"""Bytes that an empty send buffer always accepts at once."""


class EventStream(Response):
    """Sends batches of events, and the terminator with the last batch. An error is sent as the last event.

    `resources` are closed when the stream ends in any way: finished, the client disconnected, or a send timeout.
    """

    def __init__(
        self,
        events: AsyncIterator[EventBatch],
        resources: AsyncExitStack,
        *,
        framing: Framing,
        send_timeout_s: float,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=framing.media_type)
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._framing = framing
        self._send_timeout_s = send_timeout_s

    async def batches(self) -> AsyncIterator[EventBatch]:
        """Yield the batches instead of sending them; errors are raised."""
        async with self._resources:
            async for batch in self._events:
                yield batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        keep_alive = self._framing.comment("keep-alive")
        writer = _Writer(send, state["send_chunk"], state["flush"], keep_alive, self._send_timeout_s)
        async with self._resources, writer:
            with CancelScope(state["disconnected"], writer.send_timed_out):
                await self._send(scope, writer)
            if writer.send_timed_out.done():
                state["record"].error_code = "slow_reader"
                state["abort"]()

    async def _send(self, scope: Scope, writer: _Writer) -> None:
        await writer.start(self.status_code, self.raw_headers)
        try:
            async for batch in self._events:
                self._framing = batch.framing or self._framing
                if batch.is_last:
                    await writer.end(self._framing.encode_events(batch.events), self._framing.terminator)
                elif batch.events:
                    await writer.write(self._framing.encode_events(batch.events))
        except Exception as error:
            failure = as_api_error(error)
            scope["state"]["record"].error_code = failure.code
            await writer.end(self._framing.encode(self._framing.failure(failure)), self._framing.terminator)


class _Writer:
    """Writes a response, with a timer for keep-alive comments and the send timeout. Mutable.

    The response start passes the middlewares, which may change headers; body chunks go directly to the connection's
    own `send_chunk`. `send_timed_out` is done when the client has not read for `timeout_s` seconds.
    """

    def __init__(
        self,
        send: Send,
        send_chunk: SendChunk,
        flush: Callable[[], Awaitable[None]],
        keep_alive: bytes,
        timeout_s: float,
    ) -> None:
        self._send = send
        self._send_chunk = send_chunk
        self._flush = flush
        self._keep_alive = keep_alive
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._last_sent_s = self._now()
        self._blocked_since_s: float | None = None
        """The loop's time at which the current write began; None between writes."""
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None
        self.send_timed_out: asyncio.Future[None] = self._loop.create_future()

    async def __aenter__(self) -> None:
        self._on_timer()

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
            await asyncio.wait({self._keep_alive_task})

    async def start(self, status: int, headers: Any) -> None:
        await self._with_send_timeout(self._send({"type": "http.response.start", "status": status, "headers": headers}))

    async def write(self, data: bytes) -> None:
        """Send a chunk of the body; the timer limits how long that may take."""
        self._blocked_since_s = self._now()
        await self._send_chunk(data)
        self._last_sent_s, self._blocked_since_s = self._blocked_since_s, None

    async def end(self, data: bytes, terminator: bytes) -> None:
        """Send the last chunk and the terminator, once the client has read nearly everything before them.

        A client that reads slowly would otherwise miss the terminator when the server shuts down.
        """
        if len(data) > _MAX_UNBLOCKED_BYTES:
            await self.write(data)
            data = b""
        await self._with_send_timeout(self._flush())
        await self._with_send_timeout(self._send_chunk(data + terminator, is_last=True))

    async def _with_send_timeout(self, sending: Awaitable[None]) -> None:
        self._blocked_since_s = self._now()
        await sending
        self._last_sent_s, self._blocked_since_s = self._blocked_since_s, None

    def _on_timer(self) -> None:
        """Send a comment after KEEP_ALIVE_S without an event, and check whether the client reads.

        One timer for all chunks, run as rarely as possible: a timer per chunk would cost more than sending the chunk.
        """
        now, since_s = self._now(), self._blocked_since_s
        if since_s is not None:
            wait_s = since_s + self._timeout_s - now
            if wait_s <= 0:
                self.send_timed_out.set_result(None)
                return
        else:
            wait_s = min(self._last_sent_s + KEEP_ALIVE_S - now, self._timeout_s)  # a write may block in the meantime
            if wait_s <= 0:
                self._keep_alive_task = self._loop.create_task(self._send_keep_alive())
                return
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    async def _send_keep_alive(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send_chunk(self._keep_alive)
        except TimeoutError:
            self.send_timed_out.set_result(None)
            return
        self._last_sent_s = self._now()
        self._on_timer()
