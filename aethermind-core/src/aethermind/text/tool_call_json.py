"""Tool calls in a model's text: JSON objects with `name` and `arguments`, and the tags around them.

Arguments are passed on verbatim. Parsed and serialised again they would change: Python's JSON changes the size and
precision of numbers, and drops duplicate keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["TaggedCall", "as_arguments", "is_json", "overlap", "read_calls"]

_OBJECT_START = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*(?:(?=")|(\})[ \t\n\r]*)')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_AFTER_MEMBER = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*(?=")|(\})[ \t\n\r]*)')
"""The delimiters of an object's members. The group of `_OBJECT_START` and `_AFTER_MEMBER` is the object's end."""

_BETWEEN_OBJECTS = re.compile(r"[ \t\n\r,;\[\]]*")
"""The delimiters of several objects, which may be in a list."""

_MEMBERS_OF_EMPTY_CALL = frozenset({"name", "id", "index", "type", "description"})
"""The members that a call without arguments may have; others would be lost."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
"""A decoder that does not convert numbers: Python refuses numbers of thousands of digits."""


def read_calls(text: str) -> list[tuple[str, str]]:
    """Return name and arguments (JSON text) of each call in a text; empty if any part of the text is not a call."""
    try:
        calls = [_call(json_text) for json_text in _objects(text)]
    except (ValueError, RecursionError):
        return []
    return calls


def _objects(text: str) -> Iterator[str]:
    """Yield the JSON objects of a text verbatim; ValueError for other text."""
    position = _match_at(_BETWEEN_OBJECTS, text, 0).end()
    while position < len(text):
        _match_at(_OBJECT_START, text, position)
        _, end = _DECODER.raw_decode(text, position)
        yield text[position:end]
        position = _match_at(_BETWEEN_OBJECTS, text, end).end()


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
        if not _MEMBERS_OF_EMPTY_CALL.issuperset(members):
            raise ValueError("the call has members that are not arguments")
        arguments = "{}"
    if _is_string(arguments):
        arguments = json.loads(arguments)
    return json.loads(name), _checked_arguments(arguments)


def as_arguments(text: str) -> str | None:
    """Return a text as the arguments of a call, `{}` for an empty text and null; None unless it is a JSON object."""
    try:
        return _checked_arguments(text)
    except (ValueError, RecursionError):
        return None


def _checked_arguments(text: str) -> str:
    text = text.strip()
    if text in ("", "null"):
        return "{}"
    _members(text)  # ValueError unless it is an object
    return text


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        _, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return end == len(text) and text not in ("NaN", "Infinity", "-Infinity")


def _members(text: str) -> dict[str, str]:
    """Return the values of an object verbatim, by key; ValueError where the text is not an object."""
    members: dict[str, str] = {}
    delimiter = _match_at(_OBJECT_START, text, 0)
    while delimiter[1] is None:
        name, end = _DECODER.raw_decode(text, delimiter.end())
        begin = _match_at(_COLON, text, end).end()
        _, end = _DECODER.raw_decode(text, begin)
        members[name] = text[begin:end]
        delimiter = _match_at(_AFTER_MEMBER, text, end)
    if delimiter.end() < len(text):
        raise ValueError("something follows the object")
    return members


def _match_at(pattern: re.Pattern[str], text: str, position: int) -> re.Match[str]:
    found = pattern.match(text, position)
    if found is None:
        raise ValueError(f"unexpected text at {position}")
    return found


def _is_string(json_text: str) -> bool:
    return json_text.startswith('"')


_INSIDE_STRING = re.compile(r'\\.|"', re.DOTALL)


class TaggedCall:
    """Collects the text after an opening tag up to the closing one. Mutable; one for each tag.

    The tag counts only outside of JSON strings: a string may contain it, as text that a tool is to write.
    """

    def __init__(self, closing: str, *, has_strings: bool | None = None) -> None:
        """Begin after an opening tag; the text ends at `closing`.

        `has_strings` says whether the text has JSON strings; None: if it begins like an object or a list.
        """
        self._closing = closing
        self._has_strings = has_strings
        self._outside_string = re.compile(f'"|{re.escape(closing)}')
        self._is_in_string = False
        self._pieces: list[str] = []
        self._undecided = ""
        """Text that may be the beginning of a tag or of an escaped character."""

    @property
    def body(self) -> str:
        """The text before the closing tag, or all text so far."""
        return "".join((*self._pieces, self._undecided))

    def push(self, text: str) -> str | None:
        """Add text; return what follows the closing tag, None while it was not found."""
        undecided, position = self._undecided + text, 0
        if self._has_strings is None and (begin := undecided.lstrip()[:1]):
            self._has_strings = begin in "{["
            if not self._has_strings:
                self._outside_string = re.compile(re.escape(self._closing))
        while mark := (_INSIDE_STRING if self._is_in_string else self._outside_string).search(undecided, position):
            position = mark.end()
            if mark[0] == self._closing:
                self._pieces.append(undecided[: mark.start()])
                self._undecided = ""
                return undecided[position:]
            if mark[0] == '"':
                self._is_in_string = not self._is_in_string
        num_undecided = undecided.endswith("\\") if self._is_in_string else overlap(undecided, self._closing)
        end = max(len(undecided) - num_undecided, position)
        self._pieces.append(undecided[:end])
        self._undecided = undecided[end:]
        return None


def overlap(text: str, tag: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `tag`."""
    begin = text.find(tag[0], max(0, len(text) - len(tag) + 1))
    while begin >= 0 and not tag.startswith(text[begin:]):
        begin = text.find(tag[0], begin + 1)
    return 0 if begin < 0 else len(text) - begin
