"""Tool calls in a model's text: JSON objects with `name` and `arguments`, and the tags around them.

Arguments are passed on verbatim. Parsed and serialised again they would change: Python's JSON changes the size and
precision of numbers, and drops duplicate keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["TaggedCall", "overlap", "read_calls"]

_OPENING = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*(?:(?=")|(\})[ \t\n\r]*)')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_BEHIND = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*(?=")|(\})[ \t\n\r]*)')
"""What surrounds an object's members; the group is the end of the object."""

_BETWEEN = re.compile(r"[ \t\n\r,;\[\]]*")
"""What surrounds several objects, which may be in a list."""

_WITHOUT_ARGUMENTS = frozenset({"name", "id", "index", "type", "description"})
"""The members that a call without arguments may have; others would be lost."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
"""Does not convert numbers: Python refuses those of thousands of digits."""


def read_calls(text: str) -> list[tuple[str, str]]:
    """Return names and arguments (JSON text) of all calls of a text; empty where any part of it is not a call."""
    try:
        calls = [_call(written) for written in _objects(text)]
    except (ValueError, RecursionError):
        return []
    return calls


def _objects(text: str) -> Iterator[str]:
    """Yield the JSON objects of a text verbatim; ValueError for other text."""
    place = _matched(_BETWEEN, text, 0).end()
    while place < len(text):
        _matched(_OPENING, text, place)
        _, end = _DECODER.raw_decode(text, place)
        yield text[place:end]
        place = _matched(_BETWEEN, text, end).end()


def _call(text: str) -> tuple[str, str]:
    """Return name and arguments; ValueError where the object is not a call.

    Models also write `parameters`, wrap both in a `function`, write arguments as JSON inside a string, or as null.
    """
    members = _members(text)
    if members.get("function", "").startswith("{"):
        members = _members(members["function"])
    name, arguments = members.get("name", ""), members.get("arguments", members.get("parameters"))
    if not _is_string(name):
        raise ValueError("the call has no name")
    if arguments is None:
        if not _WITHOUT_ARGUMENTS.issuperset(members):
            raise ValueError("the call has members that are not arguments")
        arguments = "{}"
    if _is_string(arguments):
        arguments = json.loads(arguments).strip()
    if arguments in ("", "null"):
        return json.loads(name), "{}"
    _members(arguments)  # ValueError unless it is an object
    return json.loads(name), arguments


def _members(text: str) -> dict[str, str]:
    """Return the values of an object verbatim, by key; ValueError where the text is not an object."""
    members: dict[str, str] = {}
    sign = _matched(_OPENING, text, 0)
    while sign[1] is None:
        name, end = _DECODER.raw_decode(text, sign.end())
        begin = _matched(_COLON, text, end).end()
        _, end = _DECODER.raw_decode(text, begin)
        members[name] = text[begin:end]
        sign = _matched(_BEHIND, text, end)
    if sign.end() < len(text):
        raise ValueError("something follows the object")
    return members


def _matched(pattern: re.Pattern[str], text: str, place: int) -> re.Match[str]:
    found = pattern.match(text, place)
    if found is None:
        raise ValueError(f"unexpected text at {place}")
    return found


def _is_string(written: str) -> bool:
    return written.startswith('"')


_IN_STRING = re.compile(r'\\.|"', re.DOTALL)


class TaggedCall:
    """Collects the text behind an opening tag up to the closing one. Mutable; one for each tag.

    A tag counts only outside of JSON strings, which may contain it, as text that a tool is to write.
    """

    def __init__(self, closing: str) -> None:
        """Begin behind an opening tag; the text ends at `closing`."""
        self._closing = closing
        self._outside = re.compile(f'"|{re.escape(closing)}')
        self._is_in_string = False
        self._pieces: list[str] = []
        self._held = ""
        """Text that may be the beginning of a tag or of an escaped character."""

    @property
    def body(self) -> str:
        """The text before the closing tag, or so far."""
        return "".join((*self._pieces, self._held))

    def push(self, text: str) -> str | None:
        """Add text; return what follows the closing tag, None while it was not found."""
        held, place = self._held + text, 0
        while mark := (_IN_STRING if self._is_in_string else self._outside).search(held, place):
            place = mark.end()
            if mark[0] == self._closing:
                self._pieces.append(held[: mark.start()])
                self._held = ""
                return held[place:]
            if mark[0] == '"':
                self._is_in_string = not self._is_in_string
        undecided = held.endswith("\\") if self._is_in_string else overlap(held, self._closing)
        end = max(len(held) - undecided, place)
        self._pieces.append(held[:end])
        self._held = held[end:]
        return None


def overlap(text: str, tag: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
