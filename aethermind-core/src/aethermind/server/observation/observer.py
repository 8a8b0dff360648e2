"""The outermost middleware: gives each HTTP request an id and a record, counts its outcome and logs it."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders

from aethermind.log import get_logger, quoted
from aethermind.server.access import header_of
from aethermind.server.observation.records import HttpRecord
from aethermind.server.openai.errors import LIMIT_CODES, as_api_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.tracing import Tracing

__all__ = ["Observer", "log_request"]

_MAX_CLIENT_ID_CHARS = 128
_MAX_LOG_CHARS = 256
_IN_MESSAGE = ("client", "method", "path", "status")

_log = get_logger("aethermind.request")


class Observer:
    """ASGI middleware that observes requests. `state.record` of a request is its record, which inner layers fill.

    `X-Request-Id` of a response is the server's id. The client's own id is only repeated, as `X-Client-Request-Id` and
    in the log. Unexpected exceptions become a 500 here, so that they are counted, too. Records, and so the log, contain
    prompts only with `log_prompts`. With `tracing`, each request is a span.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, log_prompts: bool = False, tracing: Tracing | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._log_prompts = log_prompts
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or (None,))[0]
        record = HttpRecord(f"req_{uuid.uuid4().hex}", scope["method"], scope["path"], client, _client_id(scope))
        record.prompts = [] if self._log_prompts else None
        state = scope.setdefault("state", {})
        state["record"] = record
        state["request_id"] = record.request_id
        if scope["method"] == "HEAD":  # served as GET; the protocol sends the headers only
            scope = {**scope, "method": "GET"}

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.request_id
                if record.client_id is not None:
                    headers["X-Client-Request-Id"] = record.client_id
                record.status = message["status"]
                record.route = getattr(scope.get("route"), "path", record.route)
                self._metrics.count_response(record)
            await send(message)

        self._metrics.begin_request()
        try:
            await self._app(scope, receive, send_observed)
        except Exception as error:
            failure = as_api_error(error)
            record.error_code = failure.code
            if record.status is not None:  # the response has started and is left incomplete
                raise
            await failure.response()(scope, receive, send_observed)
        finally:
            record.ended_s = time.perf_counter()
            self._metrics.end_request()
            if record.error_code in LIMIT_CODES:
                self._metrics.count_rejection(record.error_code)
            log_request(record)
            if self._tracing is not None and record.is_api_call:
                self._tracing.record(record, Headers(scope=scope))


def _client_id(scope: Scope) -> str | None:
    """The client's own id of its request; None if it has none, or one that cannot be logged safely."""
    given = (header_of(scope, b"x-request-id") or "")[:_MAX_CLIENT_ID_CHARS]
    return given if given and given.isascii() and given.isprintable() else None


def log_request(record: HttpRecord) -> None:
    """Log a finished request in one line, without its contents: `info` for API calls, `debug` for probes and assets."""
    level = logging.INFO if record.is_api_call else logging.DEBUG
    if _log.isEnabledFor(level):
        path, status = quoted(record.path[:_MAX_LOG_CHARS]), "gone" if record.status is None else record.status
        extra = {"fields": _fields(record), "in_message": _IN_MESSAGE}
        _log.log(level, "%s %s %s %s", record.client or "-", record.method, path, status, extra=extra)


def _fields(record: HttpRecord) -> dict[str, Any]:
    """The fields of the line in their order, without those that are None."""
    generations = record.generations
    fields: dict[str, Any] = {
        "client": record.client,
        "method": record.method,
        "path": record.path[:_MAX_LOG_CHARS],
        "status": record.status,
        "error": record.error_code,
    }
    if generations:
        fields |= {
            "model": generations[0].model,
            "stream": record.is_stream,
            "prompt_tokens": sum(one.num_prompt_tokens for one in generations),
            "cached_tokens": sum(one.num_cached_tokens for one in generations),
            "output_tokens": sum(one.num_output_tokens for one in generations),
            "preemptions": sum(one.num_preemptions for one in generations),
            "finish_reason": ",".join(dict.fromkeys(reason for one in generations for reason in one.finish_reasons)),
        }
    if record.embedding is not None:
        fields |= {"model": record.embedding.model, "prompt_tokens": record.embedding.num_prompt_tokens}
    seconds = {"ttft": record.ttft_s, "duration": record.duration_s}
    fields |= {f"{name}_ms": None if value is None else round(value * 1e3, 3) for name, value in seconds.items()}
    fields |= {
        "tenant": record.tenant,
        "user": None if record.user is None else record.user[:_MAX_LOG_CHARS],
        "request_id": record.request_id,
        "client_request_id": record.client_id,
        "prompts": record.prompts or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
