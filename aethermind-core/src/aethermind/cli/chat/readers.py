"""Readers of chat entries: from a terminal, or from a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from aethermind.cli import console
from aethermind.errors import InvalidArgumentError

__all__ = ["Entry", "PipeReader", "Reader", "TerminalReader"]

FENCE = '"""'
PROMPT = "> "
CONTINUATION = "... "
EXIT_WORDS = frozenset({"exit", "quit"})
"""Words that end the chat on a terminal without a slash before them."""


class Entry(NamedTuple):
    """A message, or a command without its slash."""

    text: str
    is_command: bool


class Reader(Protocol):
    """Reads entries, one per call."""

    is_interactive: bool
    """Whether a user sees errors and can react to them."""

    def read(self) -> Entry | None:
        """Return the next entry; None at the end."""
        ...

    def edit(self, text: str) -> str | None:
        """Let the user edit `text`; None if they cancel."""
        ...

    def ask(self, question: str) -> str:
        """Ask the user; returns the answer, empty if there is none."""
        ...


class _EntryParser:
    """Parses lines into entries: `/` begins a command, `//` a message that begins with a slash, `FENCE` a message of
    several lines, which ends with `FENCE`.

    Spaces before these are ignored, and blank lines are skipped.
    """

    def _read_line(self, prompt: str) -> str | None:
        raise NotImplementedError

    def read(self) -> Entry | None:
        while (line := self._read_line(PROMPT)) is not None:
            entry = self._entry(line)
            if entry.is_command or entry.text.strip():
                return entry
        return None

    def _entry(self, line: str) -> Entry:
        stripped = line.lstrip()
        if stripped.startswith(FENCE):
            return Entry(self._fenced(stripped.removeprefix(FENCE)), False)
        if stripped.startswith("//"):
            return Entry(stripped[1:], False)
        return Entry(stripped[1:], True) if stripped.startswith("/") else Entry(line, False)

    def _fenced(self, line: str | None) -> str:
        lines = []
        while line is not None:
            if line.rstrip().endswith(FENCE):
                lines.append(line.rstrip().removesuffix(FENCE))
                break
            lines.append(line)
            line = self._read_line(CONTINUATION)
        return "\n".join(lines).strip("\n")


class PipeReader(_EntryParser):
    """Reads the lines of a stream to its end."""

    is_interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def edit(self, text: str) -> str | None:
        """Raise InvalidArgumentError: a pipe cannot edit."""
        raise InvalidArgumentError("/edit needs a terminal, or the new text: /edit TEXT.")

    def ask(self, question: str) -> str:
        """Return an empty answer, because a pipe has no user."""
        return ""

    def _read_line(self, prompt: str) -> str | None:
        raw = self._stream.readline()
        if not raw:
            return None
        try:
            return raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"Standard input is not UTF-8: byte {error.start} of {raw!r:.40}.") from error


class TerminalReader(_EntryParser):
    """Reads from a terminal, with editing, history and completion by readline.

    Ctrl-C drops a line; pressed twice at an empty one it leaves. Pasted lines arrive as one entry that contains
    newlines (bracketed paste, which libedit lacks).
    """

    is_interactive = True

    def __init__(self, commands: Sequence[str]) -> None:
        """Complete `commands` after a slash."""
        self._commands = frozenset(commands)
        self._readline = _readline(commands)

    def read(self) -> Entry | None:
        """Return the next entry; None at the end."""
        was_empty = False
        while True:
            try:
                return super().read()
            except KeyboardInterrupt:
                is_empty = self._readline is None or not self._readline.get_line_buffer()
                print()
                if is_empty and was_empty:
                    return None
                if is_empty:
                    print("[Ctrl-C again, Ctrl-D or /exit leaves]", file=sys.stderr)
                was_empty = is_empty

    def _entry(self, line: str) -> Entry:
        text = line.strip("\n")
        if text.strip().lower() in EXIT_WORDS:
            return Entry("exit", True)
        return Entry(text, False) if "\n" in text and self._is_verbatim(text.lstrip()) else super()._entry(text)

    def _is_verbatim(self, stripped: str) -> bool:
        """Whether pasted lines are a message although they begin like a command or with FENCE.

        A path is not a command, and a FENCE that does not end the text may be the docstring of pasted Python.
        """
        if stripped.startswith(FENCE):
            return FENCE in stripped[len(FENCE) :] and not stripped.rstrip().endswith(FENCE)
        name = re.match(r"/([^/\s]+)(?=\s)", stripped)
        return (
            stripped.startswith("/") and not stripped.startswith("//") and (not name or name[1] not in self._commands)
        )

    def edit(self, text: str) -> str | None:
        """Let the user edit `text`; None after Ctrl-C or Ctrl-D."""
        if self._readline is None:
            raise InvalidArgumentError("/edit needs Python's readline module here, or the new text: /edit TEXT.")
        self._readline.set_startup_hook(lambda: self._readline.insert_text(text))
        try:
            return self._read_line(PROMPT)
        except KeyboardInterrupt:
            print()
            return None
        finally:
            self._readline.set_startup_hook(None)

    def ask(self, question: str) -> str:
        """Ask the user; Ctrl-C and Ctrl-D are an empty answer."""
        try:
            return self._read_line(question) or ""
        except KeyboardInterrupt:
            print()
            return ""

    def _read_line(self, prompt: str) -> str | None:
        while True:
            try:
                line = self._input(prompt)
                line.encode()
                return line
            except EOFError:
                print()
                return None
            except UnicodeError:
                print("[that was not UTF-8 text]", file=sys.stderr)

    def _input(self, prompt: str) -> str:
        """Read a line, bold while it is typed, so that questions and answers look different."""
        if self._readline is None or _is_libedit(self._readline) or not console.has_colour(sys.stdout):
            return input(prompt)
        try:
            return input(f"\001\x1b[1m\002{prompt}")
        finally:
            print("\x1b[0m", end="", flush=True)


def _readline(commands: Iterable[str]) -> Any:
    """Configure Python's readline and return it; None where Python has none."""
    try:
        import readline
    except ImportError:
        return None
    words = [f"/{name}" for name in commands]

    def complete(text: str, state: int) -> str | None:
        found = [word for word in words if text.startswith("/") and word.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    if _is_libedit(readline):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off by default
    return readline


def _is_libedit(readline: Any) -> bool:
    return "libedit" in (readline.__doc__ or "")
