"""What goes wrong, in the shape that OpenAI's clients read: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from aethermind.config.suggest import did_you_mean
from aethermind.errors import (
    AetherMindError,
    ComputationError,
    ContextLengthError,
    DeviceError,
    EngineDeadError,
    OutOfMemoryError,
    RequestTimeoutError,
)
from aethermind.log import get_logger

__all__ = ["ApiError", "LIMIT_CODES", "as_api_error", "draining", "error_body", "install_error_handlers", "is_refusal"]

_LONGEST_ADDRESS = 100
"""Characters of an unknown address that are looked at."""

DRAINING_RETRY_S = 5
"""When to ask another server, or this one after it was started again."""

ENGINE_DEAD_RETRY_S = 5
"""When to ask again after an engine died: an engine process takes about that long to be back."""

_log = get_logger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error. `param` names the field at fault, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return error_body(self.status, self.message, param=self.param, code=self.code)

    def response(self) -> JSONResponse:
        """The answer as a whole."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.code == "timeout":
            headers["X-Should-Retry"] = "false"  # OpenAI's clients would, and have the same work done again
        if self.status in (408, 413) or self.code == "draining":
            headers["Connection"] = "close"  # the rest of the body is not waited for
        return JSONResponse(self.body, self.status, headers)


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The JSON of an error with this HTTP status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def draining() -> ApiError:
    """What is said to everybody who comes, or is not inside yet, when the server stops."""
    return ApiError(503, "The server is stopping; ask another one.", code="draining", retry_after_s=DRAINING_RETRY_S)


def as_api_error(error: Exception) -> ApiError:
    """How an error of the engine is told to a client. What nobody foresaw is logged, and told without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead", retry_after_s=ENGINE_DEAD_RETRY_S)
    if isinstance(error, RequestTimeoutError):
        return ApiError(408, str(error), code="timeout")
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, str(error), code="no_room", retry_after_s=1)
    if isinstance(error, ComputationError):
        return ApiError(500, str(error), code="computation_failed")
    if isinstance(error, DeviceError):
        return ApiError(500, str(error), code="device_failed")
    if isinstance(error, AetherMindError):
        return ApiError(400, str(error))
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "The server failed on this request; its log says more.", code="internal_error")


def is_refusal(error: Exception) -> bool:
    """Whether an error of the engine says that a request cannot be served as it is."""
    return isinstance(error, AetherMindError) and as_api_error(error).status == 400


LIMIT_CODES = frozenset(
    {
        *("draining", "overloaded", "queue_full", "queue_full_of_tokens"),
        *("key_concurrency", "key_request_rate", "key_token_rate"),
        *("body_too_large", "headers_too_large", "nested_too_deeply"),
        *("timeout", "idle", "slow_reader"),
    }
)
"""Codes of errors that stand for one of the server's limits, and are counted."""


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    failure = as_api_error(error)
    request.state.record.error_code = failure.code
    return failure.response()


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    url = request.url.path
    allowed = (error.headers or {}).get("Allow", "another method")
    messages = {
        404: f"There is no {url:.100} here{_place_meant(request)}",
        405: f"{request.method:.20} does not go with {url:.100}; use {allowed}.",
    }
    body = error_body(error.status_code, messages.get(error.status_code, str(error.detail)))
    return JSONResponse(body, error.status_code, error.headers)


def _place_meant(request: Request) -> str:
    """The end of a sentence about an address that is none; the commonest lacks the /v1 of a client's base URL."""
    asked = request.url.path[:_LONGEST_ADDRESS]
    known = request.app.state.addresses
    same = (path for path in known if path.endswith(asked) or asked.endswith(path))
    return did_you_mean(next(same, asked), known)


def install_error_handlers(app: Any) -> None:
    """Answer every error of `app` (a FastAPI or Starlette application) in this shape."""
    app.add_exception_handler(HTTPException, _answer_http)
    for kind in (ApiError, AetherMindError, Exception):
        app.add_exception_handler(kind, _answer_error)
