"""The terminal of a chat: word wrap, echo, hang-up and history."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from aethermind.cli.chat.terminal import WrappingWriter, typed_history, without_echo

WORDS = "The fox, who had never seen the sea before, sat down beside an extraordinarily old turtle."


def screen(written: str, num_columns: int) -> str:
    """What a terminal of that width shows, which wraps, moves its cursor back and erases to the end of a line."""
    lines, column = [""], 0
    for piece in re.findall(r"\x1b\[\d*[A-Z]|.|\n", written):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece.endswith("D") and piece.startswith("\x1b"):
            column = max(0, column - int(piece[2:-1]))
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            if column == num_columns:
                lines.append("")
                column = 0
            lines[-1] = lines[-1][:column] + piece + lines[-1][column + 1 :]
            column += 1
    return "\n".join(line.rstrip() for line in lines)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> object:
    """`show(text, width, size)` is what a terminal shows of a text that comes in parts of that size."""

    def show(text: str, num_columns: int, size: int) -> str:
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((num_columns, 24)))
        stream = io.StringIO()
        writer = WrappingWriter(stream)
        for end in range(size, len(text) + size, size):
            writer.show(text[:end])
        writer.finish(text)
        return screen(stream.getvalue(), num_columns)

    return show


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("num_columns", [20, 33, 79])
def test_words_are_wrapped(show: object, num_columns: int, size: int) -> None:
    shown = show(f"{WORDS}\n\n{WORDS}", num_columns, size)  # type: ignore[operator]
    assert max(map(len, shown.splitlines())) < num_columns
    assert shown.split() == [*WORDS.split(), *WORDS.split()]


@pytest.mark.parametrize("text", [f"```\n{WORDS}\n```\n", f"    {WORDS}", "x" * 50, f"{'y' * 45} end"])
def test_code_and_words_longer_than_a_line_are_left_to_the_terminal(show: object, text: str) -> None:
    assert show(text, 20, 4) == screen(text.rstrip("\n") + "\n", 20)  # type: ignore[operator]


def test_text_after_code_is_wrapped(show: object) -> None:
    shown = show(f"```\na = 1\n```\n{WORDS}", 30, 5)  # type: ignore[operator]
    assert shown.split()[4:] == ["```", *WORDS.split()]


def test_echo_is_off_during_an_answer() -> None:
    screen_end, keyboard = pty.openpty()
    with os.fdopen(keyboard) as stream:

        def echoes() -> bool:
            return bool(termios.tcgetattr(stream.fileno())[3] & termios.ECHO)

        assert echoes()
        with suppress(KeyboardInterrupt), without_echo(stream):
            assert not echoes()
            raise KeyboardInterrupt
        assert echoes()
    os.close(screen_end)
    with without_echo(io.StringIO()):
        pass


def test_a_pasted_entry_is_one_line_of_the_history(tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    path = tmp_path / "history"
    readline.clear_history()
    with typed_history(path):
        readline.add_history("one\ntwo")
        readline.add_history("three")
    assert len(path.read_text(encoding="utf-8").split("\n")) == 3
    readline.clear_history()
    with typed_history(path):
        assert [readline.get_history_item(i) for i in (1, 2)] == ["one\ntwo", "three"]
        readline.add_history("four")
    assert len(path.read_text(encoding="utf-8").split("\n")) == 4
    readline.clear_history()
