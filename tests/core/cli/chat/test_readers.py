"""Readers: entries from a pipe and from a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from aethermind.cli.chat.readers import Entry, PipeReader, TerminalReader
from aethermind.errors import InvalidArgumentError


def entries(raw: bytes) -> list[tuple[str, bool]]:
    reader = PipeReader(io.BytesIO(raw))
    return list(map(tuple, iter(reader.read, None)))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", []),
        (b"hi\r\n\n  \nyou", [("hi", False), ("you", False)]),
        (b"/set a b\n", [("set a b", True)]),
        (b" /set a b\n", [("set a b", True)]),
        (b"//etc\n //etc\n", [("/etc", False)] * 2),
        (b'""""""\n"""\n\n"""\nhi\n', [("hi", False)]),
        (b'"""\none\n\n/two\n"""\n/x\n', [("one\n\n/two", False), ("x", True)]),
        (b'"""one"""\n', [("one", False)]),
        (b' """one\ntwo"""  \nthree\n', [("one\ntwo", False), ("three", False)]),
        (b'"""one\ntwo', [("one\ntwo", False)]),
        ("Grüße\n".encode(), [("Grüße", False)]),
    ],
)
def test_lines_become_entries(raw: bytes, expected: list[tuple[str, bool]]) -> None:
    assert entries(raw) == expected


def test_a_pipe_is_text_and_cannot_edit() -> None:
    with pytest.raises(InvalidArgumentError, match="byte 2"):
        entries(b"ab\xff\n")
    with pytest.raises(InvalidArgumentError, match="/edit TEXT"):
        PipeReader(io.BytesIO()).edit("x")


class FakeReadline:
    """What is typed when Ctrl-C comes."""

    buffer = ""

    def get_line_buffer(self) -> str:
        return self.buffer


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TerminalReader]:
    """A terminal reader with typed input: lines, or an exception with the text typed before it."""

    def install(keys: Iterable[Any]) -> TerminalReader:
        reader, typed = TerminalReader(("help",)), iter(keys)
        reader._readline = FakeReadline()

        def read_line(_: str) -> str:
            reader._readline.buffer = ""
            key = next(typed)
            if isinstance(key, tuple):
                reader._readline.buffer, error = key
                raise error
            return str(key)

        monkeypatch.setattr("builtins.input", read_line)
        return reader

    return install


EMPTY, STARTED, END = ("", KeyboardInterrupt()), ("typed", KeyboardInterrupt()), ("", EOFError())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["", "hi"], Entry("hi", False)),
        ([END], None),
        ([EMPTY, EMPTY], None),
        ([EMPTY, "hi"], Entry("hi", False)),
        ([STARTED, STARTED, EMPTY, "hi"], Entry("hi", False)),
        ([STARTED, EMPTY, EMPTY], None),
        (['"""a', STARTED, "hi"], Entry("hi", False)),
        ([("", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")), "hi"], Entry("hi", False)),
    ],
)
def test_ctrl_c_drops_a_line_and_twice_at_an_empty_prompt_leaves(
    type_in: Callable[..., TerminalReader], keys: list[Any], expected: Entry | None
) -> None:
    assert type_in(keys).read() == expected


def test_commands_complete() -> None:
    reader = TerminalReader(("save", "set", "help"))
    complete = reader._readline.get_completer()
    assert [complete("/s", state) for state in range(3)] == ["/save", "/set", None]
    assert complete("s", 0) is None


def test_input_that_is_not_utf_8_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["a\udcff", "b"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert TerminalReader(()).read() == Entry("b", False)
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("one\n\ntwo\n", Entry("one\n\ntwo", False)),
        ("hi\n", Entry("hi", False)),
        ("/help\n", Entry("help", True)),
        ("/help me\nplease", Entry("help me\nplease", True)),
        ("/usr/bin/python\nTraceback", Entry("/usr/bin/python\nTraceback", False)),
        ("/nonsense here\nand there", Entry("/nonsense here\nand there", False)),
        ("//etc\nand", Entry("/etc\nand", False)),
        ('"""Doc."""\n\ndef f(): ...', Entry('"""Doc."""\n\ndef f(): ...', False)),
        ('"""one\ntwo"""', Entry("one\ntwo", False)),
        ("  indented\ncode", Entry("  indented\ncode", False)),
        ("exit", Entry("exit", True)),
        (" Quit ", Entry("exit", True)),
        ("exit now", Entry("exit now", False)),
        ("exit\nquit", Entry("exit\nquit", False)),
    ],
)
def test_pasted_lines_are_one_entry(type_in: Callable[..., TerminalReader], typed: str, expected: Entry) -> None:
    assert type_in([typed]).read() == expected


def test_a_fence_that_is_open_after_a_paste_is_closed_by_typing(type_in: Callable[..., TerminalReader]) -> None:
    assert type_in(['"""one\ntwo', 'three"""']).read() == Entry("one\ntwo\nthree", False)
