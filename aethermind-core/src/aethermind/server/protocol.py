"""HTTP's wire, within bounds: headers no longer and requests no slower than allowed, and little kept for slow readers.

uvicorn's protocol over httptools has no such bounds: it keeps headers of any length, and waits for them for ever.
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

from aethermind.server.openai.errors import error_body

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

    from aethermind.server.limits import Limits

__all__ = ["SendPart", "bound_sending", "bounded_protocol"]

SEND_BUFFER_BYTES = 64 << 10
"""What a connection's socket may hold of an answer; Linux doubles it. asyncio holds another 64 KiB."""

_LINGER_S = 5.0
"""Seconds that a connection is kept after a refusal, if the client does not close it."""

_LONGEST_URL = (1 << 16) - 1
"""Bytes of a URL that the library can take apart."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_REFUSAL = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


def bound_sending(listening: socket.socket) -> None:
    """Bound what the connections of a listening socket hold for readers that do not read."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def bounded_protocol(limits: Limits, on_refusal: Callable[[str], None]) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, held to `limits`; `on_refusal` is told the code of each limit that ends a connection."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limits": limits, "on_refusal": staticmethod(on_refusal)})


class _BoundedProtocol(HttpToolsProtocol):
    """One connection. Mutable."""

    limits: Limits
    on_refusal: Callable[[str], None]

    def __init__(self, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self._num_header_bytes = 0
        self._is_awaiting = True
        self._is_reading_body = False
        self._num_unanswered = 0
        self._is_refused = False
        self._refusal = b""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._await_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(error)
        self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_awaiting = self._is_awaiting
        if was_awaiting:
            self._num_header_bytes += len(data)
        self._feed(data)
        # Headers that came whole in one piece are measured at the door, where there is a request to answer.
        if was_awaiting and self._is_awaiting and self._num_header_bytes > self.limits.max_header_bytes:
            self._refuse_headers()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Read a request again that would rather speak another protocol, in its own (RFC 9110, 7.8).

        Java's HttpClient asks for HTTP/2 in each first request. The parser takes what follows such headers for the
        other protocol, although it is the request's body.
        """
        kept = [b"%s: %s\r\n" % one for one in self.headers if one[0] != b"upgrade"]
        if len(kept) == len(self.headers):  # it is CONNECT, after which anything may come
            self.send_400_response("")
            return
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        # The old parser reads nothing more where the connection is to be closed behind this request.
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(kept)) + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_refused:
            self._await_request()

    def on_body(self, body: bytes) -> None:
        if not (self._is_refused or self.parser.should_upgrade()):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_refused or self.parser.should_upgrade():
            return
        self._is_reading_body = False
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # which a large body has paused: that the client leaves has to be seen

    def on_headers_complete(self) -> None:
        if self._is_refused or self.parser.should_upgrade():
            return
        self._is_awaiting = False
        self._stop_waiting()
        if len(self.url) > min(self.limits.max_header_bytes, _LONGEST_URL):
            self._refuse_headers()
            return
        super().on_headers_complete()
        self._is_reading_body = True
        self._num_unanswered += 1
        if self.scope["http_version"] == "1.0":
            _send_without_chunks(self.cycle)
        # Closing waits until everything is sent, which a reader that does not read puts off for ever.
        self.scope["state"] |= {
            "gone": self._gone,
            "cut": partial(self._cut, self.cycle),
            "send_part": _part_sender(self.cycle),
            "all_sent": self._all_sent,
        }

    def on_response_complete(self) -> None:
        self._num_unanswered -= 1
        super().on_response_complete()
        if self._is_refused and not self._num_unanswered:
            self._end()

    def _cut(self, cycle: RequestResponseCycle) -> None:
        """Close the connection with what is not sent; that the answer has no end is then no mistake of the app's."""
        cycle.disconnected = True
        self.transport.abort()

    async def _all_sent(self) -> None:
        """Wait until the system has taken everything that was written."""
        self.transport.set_write_buffer_limits(high=0)
        try:
            await self.flow.drain()
        finally:
            self.transport.set_write_buffer_limits()

    def _await_request(self) -> None:
        self._stop_waiting()
        self._is_awaiting, self._num_header_bytes = True, 0
        self._patience = self.loop.call_later(self.limits.idle_timeout_s, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        seconds = self.limits.idle_timeout_s
        self._refuse(408, "idle", f"No request came in {seconds:g} s.")

    def _refuse_headers(self) -> None:
        self._refuse(431, "headers_too_large", f"Headers are longer than {self.limits.max_header_bytes} bytes.")

    def send_400_response(self, msg: str) -> None:
        if self._is_reading_body:
            message = "The request body is not as its headers say: a chunk's size is wrong."
        else:
            message = "This is no HTTP request. The server speaks plain HTTP/1.1, without TLS."
        self._refuse(400, None, message)

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        """Read nothing more, and say so behind the answers to the requests that came before."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        if code is not None:
            self.on_refusal(code)
        body = json.dumps(error_body(status, message, code=code)).encode()
        self._refusal = _REFUSAL % (status, _REASONS[status], len(body)) + body
        if self._is_reading_body:
            self._give_up(self.cycle)
        if not self._num_unanswered:
            self._end()

    def _give_up(self, cycle: RequestResponseCycle) -> None:
        """Have the refusal answer a request whose body cannot be read, unless it is being answered without."""
        if cycle.response_started:
            self._refusal = b""
            return
        self._num_unanswered -= 1
        self.pipeline = deque(one for one in self.pipeline if one[0] is not cycle)
        cycle.disconnected = True
        cycle.message_event.set()

    def _end(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(self._refusal)
        self.transport.write_eof()
        # To close on a client that still sends would take the answer from it: what it sends is dropped for a while.
        self._stop_waiting()
        self._patience = self.loop.call_later(_LINGER_S, self.transport.abort)


class SendPart(Protocol):
    """Sends a part of a body whose length nobody knows, when the client has read enough of those before."""

    async def __call__(self, data: bytes, *, is_last: bool = False) -> None: ...


def _part_sender(cycle: RequestResponseCycle) -> SendPart:
    """What `cycle.send` does, quicker for a chunk that can be sent at once, as most can."""

    async def send_part(data: bytes, *, is_last: bool = False) -> None:
        is_easy = cycle.chunked_encoding and data and not (is_last or cycle.flow.write_paused or cycle.disconnected)
        if is_easy:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            await cycle.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    return send_part


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """Have what is of no known length end with its connection, as HTTP/1.0 has it: that knows no chunks, in which
    uvicorn would send it all the same (RFC 9112, 6.1). Old proxies and load generators ask so.
    """
    send, has_length = cycle.send, True

    async def send_bare(message: ASGISendEvent) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not has_length:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_bare  # type: ignore[method-assign]
