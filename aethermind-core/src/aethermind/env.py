"""The environment variables AetherMind reads, each in one place with its meaning."""

from __future__ import annotations

import os
from pathlib import Path

from aethermind.errors import InvalidArgumentError

__all__ = ["NAMES", "cache_directory", "expand_home", "log_level", "model_path", "num_threads", "plugin_allow_list"]

NAMES = frozenset(
    {"AETHERMIND_CONFIG", "AETHERMIND_LOG", "AETHERMIND_MODEL", "AETHERMIND_NUM_THREADS", "AETHERMIND_PLUGINS"}
)
"""The variables with short names. All others are those of settings (`AETHERMIND_SECTION__KEY`) and of plugins."""


def cache_directory() -> Path:
    """Where files lie that can be made again: `aethermind` under `XDG_CACHE_HOME`, else under `~/.cache`.

    Relative paths do not count, as the XDG Base Directory Specification has it. Users without a home, such as those of
    containers that run under any number, get a place where nothing can be: they go without.
    """
    return _directory("XDG_CACHE_HOME", "~/.cache")


def state_directory() -> Path:
    """Where lies what is kept from run to run: `aethermind` under `XDG_STATE_HOME`, else under `~/.local/state`, as
    with `cache_directory`.
    """
    return _directory("XDG_STATE_HOME", "~/.local/state")


def _directory(variable: str, usual: str) -> Path:
    folders = (os.environ.get(variable, ""), os.path.expanduser(usual), os.devnull)
    return Path(next(filter(os.path.isabs, folders)), "aethermind")


def expand_home(path: str) -> Path:
    """A path as somebody wrote it, where `~` is their home; InvalidArgumentError for a home that nobody knows."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"{path} begins with the home of somebody who is unknown here; write the whole path."
        ) from error


def plugin_allow_list() -> frozenset[str] | None:
    """`AETHERMIND_PLUGINS`: comma-separated plugin names that may load; unset means all of them."""
    value = os.environ.get("AETHERMIND_PLUGINS")
    if value is None:
        return None
    return frozenset(name.strip() for name in value.split(",") if name.strip())


def log_level(default: str = "warning") -> str:
    """`AETHERMIND_LOG`: `debug`, `info`, `warning` or `error`."""
    return (os.environ.get("AETHERMIND_LOG") or default).upper()


def num_threads() -> int | None:
    """`AETHERMIND_NUM_THREADS`: worker threads of a host backend; unset or empty lets the backend choose.

    InvalidArgumentError when it is not a positive number.
    """
    value = os.environ.get("AETHERMIND_NUM_THREADS", "")
    if not value:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise InvalidArgumentError(f"AETHERMIND_NUM_THREADS is {value!r}; set it to a positive number, or unset it.")
    return int(value)


def model_path() -> str | None:
    """`AETHERMIND_MODEL`: the model that commands use when `--model` is not given."""
    return os.environ.get("AETHERMIND_MODEL") or None
