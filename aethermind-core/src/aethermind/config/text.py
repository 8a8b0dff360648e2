"""A configuration as people and machines read it: TOML with each value's origin beside it, and plain records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from aethermind.config.layers import Configuration

__all__ = ["to_record", "to_toml"]

_HIDDEN = "(hidden)"
"""What stands for a secret."""

_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")
"""Of a URL."""


def to_toml(configuration: Configuration) -> str:
    """Valid TOML that sets the same values; what is unset has no TOML and becomes a comment."""
    return "\n".join(_lines(configuration))


def to_record(configuration: Configuration) -> dict[str, dict[str, dict[str, Any]]]:
    """Values and origins by section and key, for JSON."""
    record: dict[str, dict[str, dict[str, Any]]] = {}
    for name, one in configuration.settings.items():
        value, origin = configuration.values[name]
        shown = _HIDDEN if one.is_secret and value is not None else _without_passwords(value)
        record.setdefault(one.section, {})[one.key] = {"value": shown, "origin": origin}
    return record


def _lines(configuration: Configuration) -> Iterator[str]:
    for position, (section, settings) in enumerate(groupby(configuration.settings.values(), lambda one: one.section)):
        yield from ("", f"[{section}]") if position else (f"[{section}]",)
        for one in settings:
            value, origin = configuration.values[one.name]
            if value is None:
                yield f"# {one.key} = ...  # {_printable(origin)}; unset: {one.unset}"
            elif one.is_secret:
                yield f"# {one.key} is set and {_HIDDEN}  # {_printable(origin)}"
            else:
                yield f"{one.key} = {_toml(_without_passwords(value))}  # {_printable(origin)}"


def _without_passwords(value: Any) -> Any:
    return _PASSWORD.sub(rf"\1{_HIDDEN}@", value) if isinstance(value, str) else value


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
