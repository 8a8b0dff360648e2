"""HTTP/1.1 connection protocol with limits on the size of headers, the time until they are complete, and send buffers.

It extends uvicorn's httptools protocol, which buffers headers of any length and has no timeout for them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

    from aethermind.server.admission import Limits

__all__ = ["SendChunk", "bounded_protocol", "limit_send_buffer"]

SEND_BUFFER_BYTES = 64 << 10
"""Size of a connection's send buffer, which Linux doubles. asyncio buffers another 64 KiB."""

_LINGER_S = 5.0
"""Seconds until a connection is closed after an error, if the client does not close it."""

_MAX_URL_BYTES = (1 << 16) - 1
"""Longest URL that httptools can parse, in bytes."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_ERROR_HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


def limit_send_buffer(listening: socket.socket) -> None:
    """Limit the send buffers of the connections of a listening socket, so that backpressure reaches the engine soon."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def bounded_protocol(limits: Limits, on_rejection: Callable[[str], None]) -> type[HttpToolsProtocol]:
    """uvicorn's protocol class with `limits`; `on_rejection` gets the error code of each limit that is exceeded."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limits": limits, "on_rejection": staticmethod(on_rejection)})


class _BoundedProtocol(HttpToolsProtocol):
    """One connection, mutable. It ignores what it receives after a protocol error or an exceeded limit.

    `state` of each request gets `disconnected`, a future that is done once the client disconnects, and the functions
    `abort`, which closes the connection at once, `send_chunk` (see `SendChunk`) and `flush`.
    """

    limits: Limits
    on_rejection: Callable[[str], None]

    def __init__(self, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self._num_header_bytes = 0
        self._is_reading_headers = True
        self._is_reading_body = False
        self._num_pending_responses = 0
        self._has_failed = False
        self._error = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._disconnected: asyncio.Future[None] = self.loop.create_future()
        self._start_header_timeout()

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(error)
        self._disconnected.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._has_failed:
            return
        was_reading_headers = self._is_reading_headers
        if was_reading_headers:
            self._num_header_bytes += len(data)
        self._feed(data)
        # The size of complete headers is checked by `AccessMiddleware`, where there is a request to answer.
        if was_reading_headers and self._is_reading_headers and self._num_header_bytes > self.limits.max_header_bytes:
            self._fail_headers()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request with an Upgrade header again, without that header (RFC 9110, 7.8, lets a server ignore it).

        Java's HttpClient asks for an upgrade to HTTP/2 in its first request. The parser does not parse the body behind
        such headers, because it treats the body as data of the upgraded protocol.
        """
        other_headers = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        if len(other_headers) == len(self.headers):
            # There is no Upgrade header: this is a CONNECT request, which cannot be parsed further.
            self.send_400_response("")
            return
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        # A parser that has seen `Connection: close` parses nothing more, so a new one is needed.
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(other_headers)) + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._has_failed:
            self._start_header_timeout()

    def on_body(self, body: bytes) -> None:
        if not (self._has_failed or self.parser.should_upgrade()):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._has_failed or self.parser.should_upgrade():
            return
        self._is_reading_body = False
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # paused for a large body; a disconnect is seen only while reading

    def on_headers_complete(self) -> None:
        if self._has_failed or self.parser.should_upgrade():
            return
        self._is_reading_headers = False
        self._cancel_timer()
        if len(self.url) > min(self.limits.max_header_bytes, _MAX_URL_BYTES):
            self._fail_headers()
            return
        super().on_headers_complete()
        self._is_reading_body = True
        self._num_pending_responses += 1
        if self.scope["http_version"] == "1.0":
            _disable_chunked_encoding(self.cycle)
        self.scope["state"] |= {
            "disconnected": self._disconnected,
            "abort": partial(self._abort, self.cycle),
            "send_chunk": _chunk_sender(self.cycle),
            "flush": self._flush,
        }

    def on_response_complete(self) -> None:
        self._num_pending_responses -= 1
        super().on_response_complete()
        if self._has_failed and not self._num_pending_responses:
            self._send_error()

    def _abort(self, cycle: RequestResponseCycle) -> None:
        """Close the connection at once and discard unsent data; `close` would wait for a client that does not read.

        Setting `disconnected` keeps uvicorn from logging an incomplete response.
        """
        cycle.disconnected = True
        self.transport.abort()

    async def _flush(self) -> None:
        """Wait until all data written is in the socket's send buffer."""
        self.transport.set_write_buffer_limits(high=0)
        try:
            await self.flow.drain()
        finally:
            self.transport.set_write_buffer_limits()

    def _start_header_timeout(self) -> None:
        self._cancel_timer()
        self._is_reading_headers, self._num_header_bytes = True, 0
        self._timer = self.loop.call_later(self.limits.keep_alive_timeout_s, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        seconds = self.limits.keep_alive_timeout_s
        self._fail(408, "idle", f"No request came in {seconds:g} s.")

    def _fail_headers(self) -> None:
        self._fail(431, "headers_too_large", f"Headers are longer than {self.limits.max_header_bytes} bytes.")

    def send_400_response(self, msg: str) -> None:
        if self._is_reading_body:
            message = "The request body is not as its headers say: a chunk's size is wrong."
        else:
            message = "This is no HTTP request. The server speaks plain HTTP/1.1, without TLS."
        self._fail(400, None, message)

    def _fail(self, status: int, code: str | None, message: str) -> None:
        """Ignore further data, and send an error response after the responses to earlier requests."""
        if self._has_failed or self.transport.is_closing():
            return
        self._has_failed = True
        if code is not None:
            self.on_rejection(code)
        path = self.scope["path"] if self._is_reading_body else ""
        body = json.dumps(ApiError(status, message, code=code).body(path)).encode()
        self._error = _ERROR_HEAD % (status, _REASONS[status], len(body)) + body
        if self._is_reading_body:
            self._abandon(self.cycle)
        if not self._num_pending_responses:
            self._send_error()

    def _abandon(self, cycle: RequestResponseCycle) -> None:
        """Answer the request whose body cannot be read with the error, unless its response has already started."""
        if cycle.response_started:
            self._error = b""
            return
        self._num_pending_responses -= 1
        self.pipeline = deque(queued for queued in self.pipeline if queued[0] is not cycle)
        cycle.disconnected = True
        cycle.message_event.set()

    def _send_error(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(self._error)
        self.transport.write_eof()
        # Closing while the client still sends would reset the connection and discard the error (RFC 9112, 9.6), so
        # received data is ignored for a while.
        self._cancel_timer()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)


class SendChunk(Protocol):
    """Sends one chunk of a streamed response body; waits while the connection's write buffer is full (backpressure)."""

    async def __call__(self, data: bytes, *, is_last: bool = False) -> None: ...


def _chunk_sender(cycle: RequestResponseCycle) -> SendChunk:
    """`cycle.send` with a fast path for the common case: a chunk that does not have to wait for the write buffer."""

    async def send_chunk(data: bytes, *, is_last: bool = False) -> None:
        can_write = cycle.chunked_encoding and data and not (is_last or cycle.flow.write_paused or cycle.disconnected)
        if can_write:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            await cycle.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    return send_chunk


def _disable_chunked_encoding(cycle: RequestResponseCycle) -> None:
    """End a body of unknown length by closing the connection, as HTTP/1.0 requires (RFC 9112, 6.1).

    uvicorn would send chunks, which HTTP/1.0 does not have. Old proxies and load generators use HTTP/1.0.
    """
    send, has_length = cycle.send, True

    async def send_unchunked(message: ASGISendEvent) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not has_length:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_unchunked  # type: ignore[method-assign]
