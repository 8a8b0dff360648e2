"""Columns, units and colours."""

from __future__ import annotations

import io
import json

import pytest

from aethermind.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_align_and_leave_no_trailing_space() -> None:
    rows = [("a", "b", "last"), ("long", "", ""), ("title of its own",), ()]
    assert console.columns(rows, indent=" ").split("\n") == [" a     b  last", " long", " title of its own", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (2.5e9, "2.50 GB"), (-3e6, "-3.00 MB"), (7e15, "7000.00 TB")],
)
def test_quantity(value: float, text: str) -> None:
    assert console.quantity(value, "B") == text


def test_style_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.style("x", "red", io.StringIO()) == "x"
    assert console.style("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.style("x", "red", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert console.style("x", "red", Terminal()) == "x"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "utf-16"])
def test_json_keeps_every_character_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, errors="replace", write_through=True))
    console.print_json({"text": "né → 🦊"})
    assert json.loads(raw.getvalue().decode(encoding)) == {"text": "né → 🦊"}


def test_nan_and_infinity_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": [float("nan"), (1.5, float("-inf"))], "b": {"c": float("inf"), "d": "NaN"}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.5, None]], "b": {"c": None, "d": "NaN"}}
