"""The environment variables that AetherMind reads."""

from __future__ import annotations

import os
from pathlib import Path

from aethermind.errors import InvalidArgumentError

__all__ = [
    "NAMES",
    "cache_directory",
    "expand_home",
    "host_root",
    "log_level",
    "model_path",
    "num_threads",
    "plugin_allow_list",
]

NAMES = frozenset(
    {
        "AETHERMIND_CONFIG",
        "AETHERMIND_HOST_ROOT",
        "AETHERMIND_LOG",
        "AETHERMIND_MODEL",
        "AETHERMIND_NUM_THREADS",
        "AETHERMIND_PLUGINS",
    }
)
"""The variables that this module and `config` read by name. All others are settings (`AETHERMIND_SECTION__KEY` and
short forms), or belong to plugins.
"""


def cache_directory() -> Path:
    """Return the folder of caches: `aethermind` under `XDG_CACHE_HOME`, else under `~/.cache`.

    Its files may be deleted at any time. Relative paths are ignored, as the XDG Base Directory Specification says.
    Users without a home, such as arbitrary user ids in containers, get a path that cannot exist, so nothing is cached.
    """
    return _directory("XDG_CACHE_HOME", "~/.cache")


def state_directory() -> Path:
    """Return the folder of persistent state: `aethermind` under `XDG_STATE_HOME`, else under `~/.local/state`.

    Relative paths and users without a home are handled as in `cache_directory`.
    """
    return _directory("XDG_STATE_HOME", "~/.local/state")


def _directory(variable: str, default: str) -> Path:
    folders = (os.environ.get(variable, ""), os.path.expanduser(default), os.devnull)
    return Path(next(filter(os.path.isabs, folders)), "aethermind")


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded; InvalidArgumentError for the home of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"{os.fspath(path)} begins with the home of an unknown user; write the whole path."
        ) from error


def plugin_allow_list() -> frozenset[str] | None:
    """Return `AETHERMIND_PLUGINS`: the names of plugins that may load, separated by commas; None means all."""
    value = os.environ.get("AETHERMIND_PLUGINS")
    if value is None:
        return None
    return frozenset(name.strip() for name in value.split(",") if name.strip())


def log_level(default: str = "warning") -> str:
    """Return `AETHERMIND_LOG` in upper case: DEBUG, INFO, WARNING or ERROR, unchecked; `default` if unset or empty."""
    return (os.environ.get("AETHERMIND_LOG") or default).upper()


def num_threads() -> int | None:
    """Return `AETHERMIND_NUM_THREADS`: worker threads of the CPU backend; unset or empty lets the backend choose.

    InvalidArgumentError when it is not a positive number.
    """
    value = os.environ.get("AETHERMIND_NUM_THREADS", "")
    if not value:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise InvalidArgumentError(f"AETHERMIND_NUM_THREADS is {value!r}; set it to a positive number, or unset it.")
    return int(value)


def host_root() -> Path:
    """Return `AETHERMIND_HOST_ROOT`: the directory whose `sys` and `proc` describe the processors; `/` by default."""
    return Path(os.environ.get("AETHERMIND_HOST_ROOT") or "/")


def model_path() -> str | None:
    """Return `AETHERMIND_MODEL`: the model that commands use when `--model` is not given."""
    return os.environ.get("AETHERMIND_MODEL") or None
