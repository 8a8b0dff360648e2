"""What was typed, for the next chat: like a shell's history, in a file that its owner alone can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["kept_history"]

_MOST_LINES = 1000
_LINE_SEPARATOR = "\u2028"
"""Stands for the newlines of an entry in the file, which has an entry on each line."""


@contextmanager
def kept_history(path: Path) -> Iterator[None]:
    """Begin with the lines in a file, and add to it those that are typed inside.

    Who cannot read or write it goes without, and so does a Python without readline, or with one that adds nothing.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    if not hasattr(readline, "append_history_file"):
        yield
        return
    with suppress(OSError):
        readline.read_history_file(path)
    num_known = readline.get_current_history_length()
    _replace(0, num_known, _LINE_SEPARATOR, "\n")
    readline.set_history_length(_MOST_LINES)
    try:
        yield
    finally:
        num_typed = readline.get_current_history_length() - num_known
        _replace(num_known, num_typed, "\n", _LINE_SEPARATOR)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.append_history_file(num_typed, path)


def _replace(start: int, count: int, old: str, new: str) -> None:
    import readline

    for index in range(start, start + count):
        line = readline.get_history_item(index + 1)  # which counts from 1, unlike `replace_history_item`
        if line and old in line:
            readline.replace_history_item(index, line.replace(old, new))
