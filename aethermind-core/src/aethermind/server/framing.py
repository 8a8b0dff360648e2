"""The encoding of server-sent events (WHATWG HTML, 9.2), which differs between OpenAI's endpoints."""

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
"""An event to send: an object, or one that is encoded already."""


class EventBatch(NamedTuple):
    """Events that are sent together, and whether they are the last."""

    events: list[Event]
    is_last: bool = False


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ANY_TEXT = uuid.uuid4().hex
"""A placeholder for the text of an event; it occurs nowhere else."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How an endpoint encodes its events, its event for an error, and the bytes at the end of a stream."""

    encode: Callable[[dict[str, Any]], bytes]
    failure: Callable[[ApiError], dict[str, Any]]
    terminator: bytes

    def written(self, events: Iterable[Event]) -> bytes:
        """The events encoded one after another."""
        return b"".join([event if isinstance(event, bytes) else self.encode(event) for event in events])


class TextEvents:
    """Encodes events that differ only in one text: what surrounds it is encoded once per choice."""

    def __init__(self, framing: Framing, make: Callable[[int, str], dict[str, Any]]) -> None:
        """`make` returns the event that adds a text to the choice of an index."""
        self._framing = framing
        self._make = make
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def written(self, index: int, text: str) -> bytes:
        """The encoded event."""
        around = self._around.get(index)
        if around is None:
            before, after = self._framing.encode(self._make(index, _ANY_TEXT)).split(b'"%s"' % _ANY_TEXT.encode())
            around = self._around[index] = (before, after)
        return around[0] + encode_basestring(text).encode() + around[1]


UNNAMED = Framing(
    lambda event: b"data: " + _json(event).encode() + b"\n\n", lambda error: error.body, b"data: [DONE]\n\n"
)
"""Plain objects, and `[DONE]` at the end: completions and chats."""

NAMED = Framing(
    lambda event: b"event: " + event["type"].encode() + b"\ndata: " + _json(event).encode() + b"\n\n",
    lambda error: {"type": "error", "code": error.code, "message": error.message, "param": error.param},
    b"",
)
"""Each event named by its type, and nothing after the last: responses."""
