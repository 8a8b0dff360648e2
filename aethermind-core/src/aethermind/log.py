"""Logging: one logger a module, all of them under `aethermind`; only the command line installs a handler."""

from __future__ import annotations

import logging

from aethermind import env

__all__ = ["get_logger", "is_level", "set_level", "setup_console"]


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module, a child of `aethermind`."""
    is_ours = name == "aethermind" or name.startswith("aethermind.")
    return logging.getLogger(name if is_ours else f"aethermind.{name}")


def setup_console() -> None:
    """Send records to stderr from the level of `AETHERMIND_LOG` on; a name that is no level counts as `warning`."""
    root = logging.getLogger("aethermind")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
        root.addHandler(handler)
    set_level(env.log_level())


def is_level(name: str) -> bool:
    """Whether a name, in any case, is that of a level."""
    return name.upper() in logging.getLevelNamesMapping()


def set_level(name: str) -> None:
    """Let records through from this level on, a name in any case; one that is no level counts as `warning`."""
    logging.getLogger("aethermind").setLevel(logging.getLevelNamesMapping().get(name.upper(), logging.WARNING))
