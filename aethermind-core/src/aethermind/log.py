"""Logging: one logger per module, all of them below `aethermind`; only the command line installs a handler.

A record has structured fields by `extra={"fields": {...}}`: lines of text have them after the message as `name=value`,
JSON objects have them as members. `extra={"in_message": {...}}` names the fields that the message itself contains;
lines of text do not repeat these.
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
"""Libraries of the server whose records are written, too."""

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
    """Writes the records of another handler in a thread. Only the exit of the process waits for it."""

    def __init__(self, handler: logging.StreamHandler[TextIO]) -> None:
        super().__init__(handler.level)
        self.setFormatter(handler.formatter)
        self._stream = handler.stream
        self._lines: list[str] = []
        self._num_dropped = 0
        self._is_writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_queued, name="log", daemon=True).start()

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

    def _write_queued(self) -> None:
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
        except (OSError, ValueError):  # a stream without a file descriptor, such as a StringIO
            self._stream.write(text)
            return
        remaining = memoryview(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
        while remaining:
            remaining = remaining[os.write(file, remaining) :]


class _TextFormatter(logging.Formatter):
    """Lines such as `I aethermind.server: message name=value`; the prefix `%(asctime)s ` is the local time."""

    default_msec_format = "%s.%03d"

    def __init__(self, prefix: str = "") -> None:
        super().__init__(f"{prefix}%(levelname).1s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line, with the fields after the message."""
        in_message: Collection[str] = getattr(record, "in_message", ())
        fields: dict[str, Any] = getattr(record, "fields", {})
        appended = (f"{name}={quoted(value)}" for name, value in fields.items() if name not in in_message)
        return " ".join([super().formatMessage(record), *appended])


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object; `time` is UTC in RFC 3339's form, `exception` the traceback, if there is one."""
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
