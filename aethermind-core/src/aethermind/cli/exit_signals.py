"""Signals that end a command like an error does: temporary files are deleted, and typed lines are saved."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["signals_exit"]

_NAMES = ("SIGTERM", "SIGHUP")
"""SIGHUP is sent when the terminal is closed. Windows does not have it."""


@contextmanager
def signals_exit() -> Iterator[None]:
    """Raise SystemExit for the signals that end a process by default; `nohup` makes it ignore SIGHUP.

    A second signal ends the process at once. The exit code is that of shells: 128 and the signal's number.
    """
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)
