"""Printing a text that grows."""

from __future__ import annotations

from typing import TextIO

from aethermind.cli import console

__all__ = ["TextWriter"]


class TextWriter:
    """Prints a growing text, each part once; on a terminal without the control characters in it. Mutable."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = console.is_terminal(stream)
        self._num_written = 0

    def show(self, text: str) -> None:
        """Print what `text` has beyond the last call."""
        if len(text) > self._num_written:
            part = text[self._num_written :]
            self._write(console.printable(part) if self._is_terminal else part)
            self._stream.flush()
            self._num_written = len(text)

    def finish(self, text: str) -> None:
        """Print the rest, and end the line."""
        self.show(text)
        if not text.endswith("\n"):
            self.show(text + "\n")

    def _write(self, part: str) -> None:
        self._stream.write(part)
