"""How server-sent events are written (WHATWG HTML, 9.2), which differs between OpenAI's endpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aethermind.server.openai.errors import ApiError

__all__ = ["Event", "EventBatch", "Framing", "NAMED", "TextEvents", "UNNAMED"]

Event = dict[str, Any] | bytes
"""What is to be told: an object, or the bytes of one that is written already."""


class EventBatch(NamedTuple):
    """Events that are told together, and whether they are the last."""

    events: list[Event]
    is_last: bool = False


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ANY_TEXT = uuid.uuid4().hex
"""Stands in an event where its text will; nothing else has it."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How an endpoint writes its events, what it makes of an error, and what it says at the end."""

    encode: Callable[[dict[str, Any]], bytes]
    failure: Callable[[ApiError], dict[str, Any]]
    last_word: bytes

    def written(self, events: Iterable[Event]) -> bytes:
        """Events one after the other, as they cross the wire."""
        return b"".join([event if isinstance(event, bytes) else self.encode(event) for event in events])


class TextEvents:
    """Events of which nothing but one text changes: what is around it is written once. Most tokens are told by such."""

    def __init__(self, framing: Framing, make: Callable[[int, str], dict[str, Any]]) -> None:
        """`make` gives the event that adds a text to the choice of this index."""
        self._framing = framing
        self._make = make
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def written(self, index: int, text: str) -> bytes:
        """What `framing` makes of that event."""
        around = self._around.get(index)
        if around is None:
            before, after = self._framing.encode(self._make(index, _ANY_TEXT)).split(b'"%s"' % _ANY_TEXT.encode())
            around = self._around[index] = (before, after)
        return around[0] + encode_basestring(text).encode() + around[1]


UNNAMED = Framing(
    lambda event: b"data: " + _json(event).encode() + b"\n\n", lambda error: error.body, b"data: [DONE]\n\n"
)
"""Objects alone, and `[DONE]`: completions and chats."""

NAMED = Framing(
    lambda event: b"event: " + event["type"].encode() + b"\ndata: " + _json(event).encode() + b"\n\n",
    lambda error: {"type": "error", "code": error.code, "message": error.message, "param": error.param},
    b"",
)
"""Each event under the name of its type, and nothing after the last: responses."""
