"""Errors as HTTP responses in the format of the path's protocol, by default OpenAI's:
`{"error": {message, type, param, code}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from aethermind.errors import (
    AetherMindError,
    ComputationError,
    ContextLengthError,
    DeviceError,
    EngineDeadError,
    OutOfMemoryError,
    RequestTimeoutError,
    did_you_mean,
)
from aethermind.log import get_logger
from aethermind.server.anthropic import error_body as messages_error_body
from aethermind.server.anthropic import is_messages_path

__all__ = [
    "ApiError",
    "LIMIT_CODES",
    "as_api_error",
    "draining",
    "install_error_handlers",
    "is_rejection",
]

_MAX_PATH_CHARS = 100
"""Characters of an unknown path that are compared with the known paths."""

DRAINING_RETRY_S = 5
"""`Retry-After` of a server that stops, and may be started again."""

ENGINE_DEAD_RETRY_S = 5
"""`Retry-After` of a dead engine: an engine process needs about that long to restart."""

_log = get_logger(__name__)

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error response. `param` names the invalid field of the request, `code` identifies the error to programs."""

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

    def body(self, path: str = "", request_id: str | None = None) -> dict[str, Any]:
        """The JSON body of the response to a request for `path`, in the format of the path's protocol."""
        formats = (format_error for is_path, format_error in _FORMATS if is_path(path))
        return next(formats, _openai_body)(self, request_id)

    def response(self, path: str, request_id: str) -> JSONResponse:
        """The response to the request `request_id` for `path`, with the headers of its status."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.code == "timeout":
            headers["X-Should-Retry"] = "false"  # OpenAI's clients retry a 408 otherwise, and would time out again
        if self.status in (408, 413) or self.code == "draining":
            headers["Connection"] = "close"  # the rest of the body is not read
        return JSONResponse(self.body(path, request_id), self.status, headers)


def _openai_body(error: ApiError, _request_id: str | None) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _messages_body(error: ApiError, request_id: str | None) -> dict[str, Any]:
    return messages_error_body(error.status, error.message, error.code, request_id)


def _ollama_body(error: ApiError, _request_id: str | None) -> dict[str, Any]:
    return {"error": error.message}


_FORMATS: tuple[tuple[Callable[[str], bool], Callable[[ApiError, str | None], dict[str, Any]]], ...] = (
    (is_messages_path, _messages_body),
    (lambda path: path.startswith("/api/"), _ollama_body),
)
"""The bodies of errors in protocols other than OpenAI's, with what tells their paths."""


def draining() -> ApiError:
    """The error of requests that are not admitted yet when the server stops."""
    return ApiError(503, "The server is stopping; ask another one.", code="draining", retry_after_s=DRAINING_RETRY_S)


def as_api_error(error: Exception) -> ApiError:
    """The HTTP error of an exception. An unexpected exception is logged and becomes a 500 without its details."""
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


def is_rejection(error: Exception) -> bool:
    """Whether the engine rejected a request as invalid, so that it was never scheduled."""
    return isinstance(error, AetherMindError) and as_api_error(error).status == 400


LIMIT_CODES = frozenset(
    {
        *("draining", "overloaded", "queue_full", "token_queue_full"),
        *("key_concurrency", "key_request_rate", "key_token_rate"),
        *("body_too_large", "headers_too_large", "nested_too_deeply"),
        *("timeout", "idle", "slow_reader"),
    }
)
"""Error codes of the server's limits, which `aethermind_requests_rejected` counts."""


async def _handle_error(request: Request, error: Exception) -> JSONResponse:
    failure = as_api_error(error)
    request.state.record.error_code = failure.code
    return failure.response(request.url.path, request.state.request_id)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    """A 400 for a path or query parameter that a route refuses. Bodies are validated by `json_body`."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _handle_error(request, ApiError(400, f"{name}: {first['msg']}.", param=name, code="invalid_value"))


async def _handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    url = request.url.path
    allowed = (error.headers or {}).get("Allow", "another method")
    messages = {
        404: f"There is no {url:.100} here{_path_suggestion(request)}",
        405: f"{request.method:.20} does not go with {url:.100}; use {allowed}.",
    }
    failure = ApiError(error.status_code, messages.get(error.status_code, str(error.detail)))
    return JSONResponse(failure.body(url, request.state.request_id), error.status_code, error.headers)


def _path_suggestion(request: Request) -> str:
    """The end of the message of a 404: the path that was probably meant. Often a base URL lacks its /v1."""
    path = request.url.path[:_MAX_PATH_CHARS]
    known = request.app.state.documented_paths
    related = (known_path for known_path in known if known_path.endswith(path) or path.endswith(known_path))
    return did_you_mean(next(related, path), known)


def install_error_handlers(app: Any) -> None:
    """Answer every error of `app`, a FastAPI or Starlette application, in the format of the path's protocol."""
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    for kind in (ApiError, AetherMindError, Exception):
        app.add_exception_handler(kind, _handle_error)
