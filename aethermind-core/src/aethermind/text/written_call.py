"""Tool calls as models write them: JSON objects with `name` and `arguments`, one or several.

Arguments stay as they were written. Read and written again they would be what Python makes of JSON: numbers of another
size and precision, without the names that were given twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["read_calls"]

_OPENING = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*(?:(?=")|(\})[ \t\n\r]*)')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_BEHIND = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*(?=")|(\})[ \t\n\r]*)')
"""What stands around an object's members; the group is its end."""

_BETWEEN = re.compile(r"[ \t\n\r,;\[\]]*")
"""What stands around several objects, which may be in a list."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
"""Leaves numbers alone: Python refuses those of thousands of digits."""


def read_calls(text: str) -> list[tuple[str, str]]:
    """The functions' names and their arguments as JSON text; empty where any of the text is no call."""
    try:
        calls = [_call(written) for written in _objects(text)]
    except (ValueError, RecursionError):
        return []
    return calls


def _objects(text: str) -> Iterator[str]:
    """The objects of a text, as they are written; ValueError for what is none."""
    place = _matched(_BETWEEN, text, 0).end()
    while place < len(text):
        _matched(_OPENING, text, place)
        _, end = _DECODER.raw_decode(text, place)
        yield text[place:end]
        place = _matched(_BETWEEN, text, end).end()


def _call(text: str) -> tuple[str, str]:
    """Name and arguments; ValueError where the object is no call.

    Models say `parameters`, too, put both into a `function`, write arguments as JSON inside a string, and none as null.
    """
    members = _members(text)
    if members.get("function", "").startswith("{"):
        members = _members(members["function"])
    name, arguments = members.get("name", ""), members.get("arguments", members.get("parameters", "{}"))
    if not _is_string(name):
        raise ValueError("a call has a name")
    if _is_string(arguments):
        arguments = json.loads(arguments).strip()
    if arguments in ("", "null"):
        return json.loads(name), "{}"
    _members(arguments)  # which has to be an object
    return json.loads(name), arguments


def _members(text: str) -> dict[str, str]:
    """The values of an object as they are written; ValueError where the text is no object."""
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
        raise ValueError(f"the text goes on otherwise at {place}")
    return found


def _is_string(written: str) -> bool:
    return written.startswith('"')
