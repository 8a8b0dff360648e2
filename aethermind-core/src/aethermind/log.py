"""Logging: one logger a module, all of them under `aethermind`; only the command line installs a handler.

Structured fields are passed as `extra={"fields": {...}}` of a record: text has them after the message as `name=value`,
JSON as members. `extra={"in_message": {...}}` names fields that are in the message already, which text does not repeat.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any, TextIO

from aethermind import env

__all__ = [
    "FORMATS",
    "LEVELS",
    "get_logger",
    "is_level",
    "quoted",
    "set_format",
    "set_level",
    "setup_console",
    "write_in_background",
]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_LIBRARIES = ("uvicorn", "asyncio")
"""Libraries of the server whose records are shown, too."""

_MAX_QUEUED = 10_000
"""Lines that are queued while stderr is not read; further ones are dropped."""

_FLUSH_TIMEOUT_S = 1.0
"""How long a process that exits waits for queued lines to be read."""


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module, a child of `aethermind`."""
    is_child = name == "aethermind" or name.startswith("aethermind.")
    return logging.getLogger(name if is_child else f"aethermind.{name}")


def setup_console() -> None:
    """Send records to stderr from the level of `AETHERMIND_LOG` on; a name that is no level counts as `warning`."""
    root = logging.getLogger("aethermind")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_TextFormatter())
        root.addHandler(handler)
    set_level(env.log_level())


def set_format(name: str) -> None:
    """Write records as lines of `text` with the time, or as `json`, one object per line; for servers.

    Records of the server's libraries are included.
    """
    formatter = _JsonFormatter() if name == "json" else _TextFormatter("%(asctime)s ")
    for handler in logging.getLogger("aethermind").handlers:
        handler.setFormatter(formatter)
        for library in _LIBRARIES:
            logger = logging.getLogger(library)
            logger.propagate = False
            if handler not in logger.handlers:
                logger.addHandler(handler)


def write_in_background() -> None:
    """Write records in a thread from now on: a server must not block when the pipe of stderr is full and not read."""
    background: dict[logging.Handler, logging.Handler] = {}
    for name in ("aethermind", *_LIBRARIES):
        logger = logging.getLogger(name)
        for handler in logger.handlers[:]:
            if type(handler) is logging.StreamHandler:
                logger.removeHandler(handler)
                logger.addHandler(background.setdefault(handler, _BackgroundHandler(handler)))


def is_level(name: str) -> bool:
    """Whether a name, in any case, is a level."""
    return name.upper() in logging.getLevelNamesMapping()


def set_level(name: str) -> None:
    """Set the level, by a name in any case; an unknown name counts as `warning`."""
    logging.getLogger("aethermind").setLevel(logging.getLevelNamesMapping().get(name.upper(), logging.WARNING))


class _BackgroundHandler(logging.Handler):
    """Writes what another handler would, in a thread of its own. Only the exit of the process waits for it."""

    def __init__(self, other: logging.StreamHandler[TextIO]) -> None:
        super().__init__(other.level)
        self.setFormatter(other.formatter)
        self._stream = other.stream
        self._lines: list[str] = []
        self._num_dropped = 0
        self._is_writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_on, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record, unless too many are queued."""
        line = self.format(record)
        with self._changed:
            if len(self._lines) < _MAX_QUEUED:
                self._lines.append(line)
            else:
                self._num_dropped += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, with a timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._is_writing), _FLUSH_TIMEOUT_S)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, self._lines = self._lines, []
                if self._num_dropped:
                    lines.append(f"{self._num_dropped} lines were dropped here, because earlier ones were not read.")
                    self._num_dropped = 0
                self._is_writing = True
            with suppress(OSError, ValueError):  # the stream is closed
                self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        """Write to the file descriptor: a stream that blocks while holding its lock would keep the process alive."""
        try:
            file = self._stream.fileno()
        except (OSError, ValueError):  # it is not a file, but a stream of a test
            self._stream.write(text)
            return
        left = memoryview(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
        while left:
            left = left[os.write(file, left) :]


class _TextFormatter(logging.Formatter):
    """`I aethermind.server: message name=value`, for people; with `%(asctime)s` before it, the local time."""

    default_msec_format = "%s.%03d"

    def __init__(self, before: str = "") -> None:
        super().__init__(f"{before}%(levelname).1s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, with the fields after the message."""
        in_message: Collection[str] = getattr(record, "in_message", ())
        fields: dict[str, Any] = getattr(record, "fields", {})
        rest = (f"{name}={quoted(value)}" for name, value in fields.items() if name not in in_message)
        return " ".join([super().formatMessage(record), *rest])


class _JsonFormatter(logging.Formatter):
    """One JSON object per line, for programs."""

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
    """Return a value as text, in quotes unless it is one plain word."""
    text = str(value)
    is_word = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if text and is_word else repr(text)
