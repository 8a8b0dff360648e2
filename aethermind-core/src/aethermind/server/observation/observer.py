"""The outermost layer: each HTTP request gets an id and a record, and what became of it is counted and logged."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from aethermind.server.headers import header_of
from aethermind.server.observation.records import HttpRecord
from aethermind.server.observation.request_log import log_request
from aethermind.server.openai.errors import LIMIT_CODES, as_api_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.tracing import Tracing

__all__ = ["Observer"]

_LONGEST_CLIENT_ID = 128


class Observer:
    """ASGI middleware. `state.record` of a request is its record, for whoever learns more about it on the way in.

    `X-Request-Id` of an answer is the server's. A client's own is only repeated, as `X-Client-Request-Id` and in the
    log. What nobody foresaw becomes a 500 here, so that it too is counted. Prompts are kept in records, and so come
    into the log, only with `has_prompts`. With `tracing` requests are spans, too.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, has_prompts: bool = False, tracing: Tracing | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._has_prompts = has_prompts
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or (None,))[0]
        record = HttpRecord(f"req_{uuid.uuid4().hex}", scope["method"], scope["path"], client, _client_id(scope))
        record.prompts = [] if self._has_prompts else None
        state = scope.setdefault("state", {})
        state["record"] = record
        state["request_id"] = record.request_id
        if scope["method"] == "HEAD":  # what GET would say, of which the connection sends the headers alone
            scope = {**scope, "method": "GET"}

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.request_id
                if record.client_id is not None:
                    headers["X-Client-Request-Id"] = record.client_id
                record.status = message["status"]
                record.route = getattr(scope.get("route"), "path", record.route)
                self._metrics.answer_http(record)
            await send(message)

        self._metrics.begin_http()
        try:
            await self._app(scope, receive, send_observed)
        except Exception as error:
            failure = as_api_error(error)
            record.error_code = failure.code
            if record.status is not None:  # its answer has begun, and ends here without an end
                raise
            await failure.response()(scope, receive, send_observed)
        finally:
            record.ended_s = time.perf_counter()
            self._metrics.end_http()
            if record.error_code in LIMIT_CODES:
                self._metrics.count_refusal(record.error_code)
            log_request(record)
            if self._tracing is not None and record.is_work:
                self._tracing.tell(record, Headers(scope=scope))


def _client_id(scope: Scope) -> str | None:
    """What the client calls its request, if that can be repeated without harm."""
    given = (header_of(scope, b"x-request-id") or "")[:_LONGEST_CLIENT_ID]
    return given if given and given.isascii() and given.isprintable() else None
