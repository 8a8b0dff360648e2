"""Logging: one logger per module under `aethermind`, silent unless asked, never a handler forced on a host program."""

from __future__ import annotations

import logging

from aethermind import env

__all__ = ["get_logger", "setup_console"]


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module, a child of `aethermind`."""
    return logging.getLogger(name if name.startswith("aethermind") else f"aethermind.{name}")


def setup_console() -> None:
    """Send records to stderr at the level of `AETHERMIND_LOG`. Called by the command line only."""
    root = logging.getLogger("aethermind")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
        root.addHandler(handler)
    root.setLevel(getattr(logging, env.log_level(), logging.WARNING))
