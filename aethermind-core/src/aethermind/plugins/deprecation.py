"""How something public is given up: whoever uses it hears of it from Python, and its user from `aethermind doctor`.

What stays for how long is in docs/extending/stability.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["DeprecatedUseWarning", "deprecated", "noting", "sentence"]

_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


class DeprecatedUseWarning(DeprecationWarning):
    """Something is used that a coming version of the core gives up."""


def deprecated(what: str, *, instead: str, until: str, stacklevel: int = 3) -> None:
    """Announce that `what` goes with version `until`, to the line that uses it.

    Called by whatever is given up. While a plugin is loaded or one of its hooks runs, its record remembers it. The
    default `stacklevel` is that of the caller of a function that calls this.
    """
    message = sentence(what, instead=instead, until=until)
    notes = _noted.get()
    if notes is not None and message not in notes:
        notes.append(message)
    warnings.warn(message, DeprecatedUseWarning, stacklevel=stacklevel)


def sentence(what: str, *, instead: str, until: str) -> str:
    """How it is said."""
    return f"{what} goes with version {until}; use {instead}."


@contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Within this block, `notes` gets a sentence for everything deprecated that is used."""
    token = _noted.set(notes)
    try:
        yield
    finally:
        _noted.reset(token)
