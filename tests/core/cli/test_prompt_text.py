"""Texts from arguments, files and standard input, and errors of reading them."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from aethermind.cli.prompt_text import read_text
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\n", "a"),
        (b"a\r\n", "a"),
        (b"a\n\n", "a\n"),
        (b"", ""),
        ("ü".encode(), "ü"),
        ("\ufeffü\n".encode(), "ü"),
    ],
)
def test_files_and_stdin_lose_one_newline(
    raw: bytes, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(raw)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    assert read_text(None, tmp_path / "file", noun="text", option="--file") == text
    assert read_text("-", None, noun="text", option="--file") == text


def test_an_argument_is_taken_as_it_is() -> None:
    assert read_text("a\n", None, noun="text", option="--file") == "a\n"


def test_errors_name_the_text_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"ab\xff")
    for text, file, says in (
        (None, None, "Found no note. .*--note"),
        ("a", tmp_path, "Found two notes"),
        (None, tmp_path / "none", "Note file .*none cannot be read: No such file"),
        (None, tmp_path / "latin", r"The note .*latin is not UTF-8 text \(byte 2\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            read_text(text, file, noun="note", option="--note")
