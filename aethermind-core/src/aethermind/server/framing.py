"""How server-sent events are written (WHATWG HTML, 9.2), which differs between OpenAI's endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.server.openai.errors import ApiError

__all__ = ["Framing", "NAMED", "UNNAMED"]


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Framing:
    """How an endpoint writes its events, what it makes of an error, and what it says at the end."""

    encode: Callable[[dict[str, Any]], bytes]
    failure: Callable[[ApiError], dict[str, Any]]
    last_word: bytes


UNNAMED = Framing(lambda event: b"data: " + _json(event) + b"\n\n", lambda error: error.body, b"data: [DONE]\n\n")
"""Objects alone, and `[DONE]`: completions and chats."""

NAMED = Framing(
    lambda event: b"event: " + event["type"].encode() + b"\ndata: " + _json(event) + b"\n\n",
    lambda error: {"type": "error", "code": error.code, "message": error.message, "param": error.param},
    b"",
)
"""Each event under the name of its type, and nothing after the last: responses."""
