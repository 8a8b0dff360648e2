"""Suggestions in error messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `; did you mean X?`, or a full stop if no name is close.

    A known name with the same part after the last dot takes precedence, which is a key of another section.
    """
    text, names = str(name), list(known)
    key = text.rpartition(".")[2]
    same_key = [name for name in names if "." in name and name.rpartition(".")[2] == key]
    close = same_key or get_close_matches(text, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else "."
