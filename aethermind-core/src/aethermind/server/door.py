"""What every request passes on its way in and out: it gets an id, shows its key, and is counted."""

from __future__ import annotations

import hmac
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aethermind.server.metrics import Metrics

__all__ = ["Door"]

_OPEN_TO_ALL = frozenset({"/health", "/ready", "/version"})


class Door:
    """ASGI middleware. `X-Request-Id` of an answer is the server's; without a key, `api_key` being set, it is a 401."""

    def __init__(self, app: ASGIApp, api_key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._api_key = api_key
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.count_http(scope["method"], path, message["status"])
            await send(message)

        if self._api_key is None or scope["path"] in _OPEN_TO_ALL or _has_key(scope, self._api_key):
            await self._app(scope, receive, send_counted)
            return
        refusal = ApiError(
            401, "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.", code="invalid_api_key"
        )
        await refusal.response()(scope, receive, send_counted)


def _has_key(scope: Scope, api_key: str) -> bool:
    given = Headers(scope=scope).get("authorization", "")
    return hmac.compare_digest(given.removeprefix("Bearer ").encode(), api_key.encode())
