"""The terminal of a chat: echo, hang-up, word wrap, and the history of typed lines."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from aethermind.cli.console import TextWriter

__all__ = ["WrappingWriter", "typed_history", "without_echo"]


_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
"""A newline, spaces, or a part of a word."""
_CODE_FENCE = ("```", "~~~")
_INDENTED = ("    ", "\t")


@contextmanager
def without_echo(stream: TextIO) -> Iterator[None]:
    """Turn off the echo of typed keys, which would appear within the reply. The next prompt shows them."""
    try:
        import termios

        number = stream.fileno()
        before = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    changed = before[:]
    changed[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


class WrappingWriter(TextWriter):
    """A TextWriter that moves a word to the next line where the terminal would break it. Mutable.

    Code, between fences or indented, is not wrapped.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.cells import cell_len

        super().__init__(stream)
        self._width_of = cell_len
        self._line = self._word = ""
        self._column = 0
        self._is_fenced = False

    def _write(self, part: str) -> None:
        num_columns = shutil.get_terminal_size().columns
        super()._write("".join(self._wrapped(piece, num_columns) for piece in _PIECES.findall(part)))

    def _wrapped(self, piece: str, num_columns: int) -> str:
        """Return a piece of text, after the control sequence that moves its word to the next line if it must wrap."""
        if piece == "\n":
            self._is_fenced ^= self._line.lstrip().startswith(_CODE_FENCE)
            self._line = self._word = ""
            self._column = 0
            return piece
        self._line += piece
        width = self._width_of(piece.expandtabs(8))
        end = self._column + width
        if piece.isspace():
            self._word = ""
        else:
            self._word += piece
        if end < num_columns:  # the last column is left free: a cursor beyond it cannot be moved back
            self._column = end
            return piece
        word_width = self._width_of(self._word)
        is_code = self._is_fenced or self._line.startswith(_INDENTED)
        if is_code or not self._word or word_width >= num_columns or word_width == end:
            self._column = end % num_columns
            return piece
        num_back = word_width - width
        self._column, self._line = word_width, self._word
        return (f"\x1b[{num_back}D\x1b[K" if num_back else "") + "\n" + self._word


_MAX_HISTORY_LINES = 1000
_LINE_SEPARATOR = "\u2028"
"""Replaces the newlines of an entry in the file, which has one entry per line."""


@contextmanager
def typed_history(path: Path) -> Iterator[None]:
    """Load readline's history from a file, and append to it the lines typed within the block.

    Does nothing without Python's readline, or where readline cannot append; a file that cannot be read or written is
    skipped. The file is created with mode 0600.
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
    readline.set_history_length(_MAX_HISTORY_LINES)
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
