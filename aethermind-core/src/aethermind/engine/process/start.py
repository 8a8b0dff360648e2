"""The start of an engine's child processes: their command and environment, signals, version check, exit status.

The process of an engine and those of other tensor-parallel ranks (`executors`) start in this way.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aethermind import __version__, env
from aethermind.errors import PluginError
from aethermind.plugins.discovery import plugin_names
from aethermind.plugins.sandbox import import_path

__all__ = ["blocked_signals", "check_version", "child_command", "child_environment", "describe_exit", "init_child"]

_PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that a terminal sends to every process of a group; only the parent acts on them."""


def child_command(module: str, *numbers: int) -> list[str]:
    """Return the command that runs `module` with `numbers` and this process's version as its arguments."""
    return [sys.executable, "-m", module, *map(str, numbers), __version__]


def child_environment() -> dict[str, str]:
    """Return this process's environment and import path, without plugin names that were reported as unknown."""
    variables = {**os.environ, "PYTHONPATH": import_path()}
    if (allowed := env.plugin_allow_list()) is not None:
        variables["AETHERMIND_PLUGINS"] = ",".join(sorted(allowed & plugin_names()))
    return variables


class _Starts(threading.local):
    """The starts of children that run in a thread: the tasks of an event loop may begin several at once."""

    num_open = 0
    mask: set[int] = set()  # noqa: RUF012  # replaced and never changed
    """The thread's signal mask before the first of them."""


_starts = _Starts()


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block signals while a child is started. It inherits the mask, so that no signal ends it before `init_child`.

    Contexts of one thread may overlap; the end of the last one restores the thread's mask.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    if not _starts.num_open:
        _starts.mask = mask
    _starts.num_open += 1
    try:
        yield
    finally:
        _starts.num_open -= 1
        if not _starts.num_open:
            signal.pthread_sigmask(signal.SIG_SETMASK, _starts.mask)


def init_child() -> None:
    """Initialise a child process: ignore the parent's signals, and enable tracebacks of crashes. Called first."""
    for number in _PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENT_SIGNALS)
    faulthandler.enable()


def check_version(parent_version: str) -> None:
    """Check the version in a child: PluginError if another one was installed since the parent started."""
    if parent_version != __version__:
        raise PluginError(f"AetherMind {parent_version} became {__version__} while it ran; start it again.")


def describe_exit(code: int) -> str:
    """Describe an exit code in words, such as 'was killed by SIGKILL'."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
