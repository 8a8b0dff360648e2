"""Anthropic's Messages API, on the chat path of the OpenAI API: the API of Claude Code and of the `anthropic` clients.

https://docs.claude.com/en/api/messages. This module has the format of its errors, which all layers of the server use:
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["THREADS_UNSUPPORTED", "error_body", "is_messages_path"]

THREADS_UNSUPPORTED = "thread_unsupported_request"
"""The error code after which Anthropic's clients send whole conversations, not only new messages."""

_PATH = "/v1/messages"

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_messages_path(path: str) -> bool:
    """Whether errors of this path have Anthropic's format."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def error_body(status: int, message: str, code: str | None, request_id: str | None) -> dict[str, Any]:
    """The JSON body of an error, and the event of an error in a stream.

    `code` is the server's own error code. Claude Code compacts a conversation when "prompt is too long" is part of the
    message.
    """
    if code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": code, "unsupported": ["thread"]}
    return {"type": "error", "error": error, "request_id": request_id}
