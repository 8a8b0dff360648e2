"""Logging: one logger a module, all of them under `aethermind`; only the command line installs a handler."""

from __future__ import annotations

import logging

from aethermind import env

__all__ = ["get_logger", "setup_console"]


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
    root.setLevel(logging.getLevelNamesMapping().get(env.log_level(), logging.WARNING))
