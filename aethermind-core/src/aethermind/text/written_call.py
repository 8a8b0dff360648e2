"""A tool call as models write it: one JSON object with `name` and `arguments`.

Arguments stay as they were written. Read and written again they would be what Python makes of JSON: numbers of another
size and precision, without the names that were given twice.
"""

from __future__ import annotations

import json
import re

__all__ = ["read_call"]

_OPENING = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*(?:(?=")|(\})[ \t\n\r]*)')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_BEHIND = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*(?=")|(\})[ \t\n\r]*)')
"""What stands around an object's members; the group is its end."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
"""Leaves numbers alone: Python refuses those of thousands of digits."""


def read_call(text: str) -> tuple[str, str] | None:
    """The function's name and its arguments as JSON text; None where the text is no call.

    Some models write the arguments as JSON inside a string, which is taken out of it.
    """
    try:
        members = _members(text)
    except (ValueError, RecursionError):
        return None
    name, arguments = members.get("name", ""), members.get("arguments", "{}")
    if not _is_string(name):
        return None
    return json.loads(name), json.loads(arguments) if _is_string(arguments) else arguments


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
