"""Unproductive rules of a grammar."""

from __future__ import annotations

import pytest

from aethermind.sampling.guidance import unproductive_rules


@pytest.mark.parametrize(
    ("grammar", "endless"),
    [
        ('start: "a" start', ["start"]),
        ("start: /a*/ start", ["start"]),
        ("start: <|x|> start", ["start"]),
        ("start[capture]: start", ["start"]),
        ('start: "a" x\nx: "" x', ["start", "x"]),
        ('start: "a" | x\nx: y\ny: x "z"', ["x", "y"]),
        ('start: "a" start | "b"', []),
        ('start: start? "a"', []),
        ('start: (start)* "a"', []),
        ('?start: sum\n?sum: sum "+" one | one\none: NUM | "(" sum ")"\nNUM: /[0-9]+/', []),
        ('start: "x: start" /:start/ // start: start\n', []),
        ('start: "a"\nother.2: start', []),
        ('start: "a" -> start\n', []),
        ('start: %json {"a": "b"} start', []),
        ("start: one~3\none: NUM", []),
        ("no rules at all", []),
        ("", []),
    ],
)
def test_unproductive_rules_are_found(grammar: str, endless: list[str]) -> None:
    assert unproductive_rules(grammar) == endless
