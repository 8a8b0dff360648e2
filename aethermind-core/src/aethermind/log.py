"""Logging: one logger a module, all of them under `aethermind`; only the command line installs a handler.

What programs want to find again goes into `extra={"fields": {...}}` of a record: after the message as `name=value`,
or, where logs are JSON, as members of their own. `extra={"in_message": {...}}` names fields that the message has
already, which text does not repeat.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from aethermind import env

__all__ = ["FORMATS", "LEVELS", "get_logger", "is_level", "quoted", "set_format", "set_level", "setup_console"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module, a child of `aethermind`."""
    is_ours = name == "aethermind" or name.startswith("aethermind.")
    return logging.getLogger(name if is_ours else f"aethermind.{name}")


def setup_console() -> None:
    """Send records to stderr from the level of `AETHERMIND_LOG` on; a name that is no level counts as `warning`."""
    root = logging.getLogger("aethermind")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_TextFormatter())
        root.addHandler(handler)
    set_level(env.log_level())


def set_format(name: str) -> None:
    """Write records as lines of `text` with the time of day, or as `json`, an object a line, as what serves for long
    does; those of the libraries that serve included.
    """
    formatter = _JsonFormatter() if name == "json" else _TextFormatter("%(asctime)s ")
    for handler in logging.getLogger("aethermind").handlers:
        handler.setFormatter(formatter)
        for library in ("uvicorn", "asyncio"):
            logger = logging.getLogger(library)
            logger.propagate = False
            if handler not in logger.handlers:
                logger.addHandler(handler)


def is_level(name: str) -> bool:
    """Whether a name, in any case, is that of a level."""
    return name.upper() in logging.getLevelNamesMapping()


def set_level(name: str) -> None:
    """Let records through from this level on, a name in any case; one that is no level counts as `warning`."""
    logging.getLogger("aethermind").setLevel(logging.getLevelNamesMapping().get(name.upper(), logging.WARNING))


class _TextFormatter(logging.Formatter):
    """`I aethermind.server: message name=value`, for people; with `%(asctime)s` before it, the local time."""

    default_msec_format = "%s.%03d"

    def __init__(self, before: str = "") -> None:
        super().__init__(f"{before}%(levelname).1s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, with the fields after the message."""
        told: Collection[str] = getattr(record, "in_message", ())
        fields: dict[str, Any] = getattr(record, "fields", {})
        rest = (f"{name}={quoted(value)}" for name, value in fields.items() if name not in told)
        return " ".join([super().formatMessage(record), *rest])


class _JsonFormatter(logging.Formatter):
    """An object a line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """`time` is UTC in RFC 3339's form; `exception`, where there is one, holds the traceback."""
        import json
        from datetime import UTC, datetime

        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def quoted(value: object) -> str:
    """A value that cannot be taken for anything but itself: in quotes unless it is one plain word."""
    text = str(value)
    is_word = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if text and is_word else repr(text)
