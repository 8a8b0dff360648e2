"""How processes of an engine start: what their parent arranges, and what they do first."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aethermind import __version__, env
from aethermind.errors import PluginError
from aethermind.plugins.child_process import import_path
from aethermind.plugins.discovery import plugin_names

__all__ = ["begin", "check_version", "child_command", "child_environment", "describe_exit", "signals_held"]

_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C and SIGTERM reach every process of a group: what they mean is for the parent to say."""


def child_command(module: str, *numbers: int) -> list[str]:
    """What runs a module of ours, which is told these numbers and this process's version."""
    return [sys.executable, "-m", module, *map(str, numbers), __version__]


def child_environment() -> dict[str, str]:
    """This process's environment and its import path, without names of plugins that this process has warned of."""
    variables = {**os.environ, "PYTHONPATH": import_path()}
    if (allowed := env.plugin_allow_list()) is not None:
        variables["AETHERMIND_PLUGINS"] = ",".join(sorted(allowed & plugin_names()))
    return variables


@contextmanager
def signals_held() -> Iterator[None]:
    """Around the start of a child: the parent's signals wait in it until `begin`, lest they end it before its time."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def begin() -> None:
    """In the child, before all else: ignore the parent's signals, and say where a crash was."""
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    faulthandler.enable()


def check_version(of_the_parent: str) -> None:
    """In the child: PluginError where another version was installed since the parent started."""
    if of_the_parent != __version__:
        raise PluginError(f"AetherMind {of_the_parent} became {__version__} while it ran; start it again.")


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
