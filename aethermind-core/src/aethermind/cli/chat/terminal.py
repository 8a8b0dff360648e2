"""The terminal of a chat: keys pressed during an answer, its end, and words that are not cut at the margin."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from aethermind.cli.text_writer import TextWriter

__all__ = ["WrappingWriter", "hangup_exits", "without_echo"]

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_CODE_FENCE = ("```", "~~~")
_INDENTED = ("    ", "\t")


@contextmanager
def without_echo(stream: TextIO) -> Iterator[None]:
    """Let the terminal not show what is typed: it would stand in the middle of an answer. The next prompt shows it."""
    try:
        import termios

        number = stream.fileno()
        before = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    quiet = before[:]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


@contextmanager
def hangup_exits() -> Iterator[None]:
    """Let a terminal that is closed end the program by SystemExit, so that what was typed is still saved."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:  # as under nohup
        yield
        return
    signal.signal(signal.SIGHUP, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _exit(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


class WrappingWriter(TextWriter):
    """A TextWriter that moves a word to the next line where the terminal would cut it. Mutable.

    Code is left as it is: lines between fences and indented ones.
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
        """A newline, space or a part of a word, with what has to be written before it."""
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
        if end < num_columns:  # the last column stays free: a cursor beyond it cannot be moved back
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
