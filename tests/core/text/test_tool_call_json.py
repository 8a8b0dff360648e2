"""Calls as models write them: what is one, and that its arguments come out as they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text.tool_call_json import read_calls

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "a"}', ("a", "{}")),
        (' {\n"name" :"a" ,\t"arguments":{"x":1,  "y": [2]} }\r\n', ("a", '{"x":1,  "y": [2]}')),
        (
            '{"arguments": {"x": 12345678901234567890123.0}, "name": "\\u00e4"}',
            ("ä", '{"x": 12345678901234567890123.0}'),
        ),
        ('{"name": "a", "arguments": {"x": 1e999, "x": -0}}', ("a", '{"x": 1e999, "x": -0}')),
        ('{"name": "a", "arguments": "{\\"x\\": 1}"}', ("a", '{"x": 1}')),
        ('{"name": "a", "arguments": null, "id": 5}', ("a", "{}")),
        ('{"name": "a", "arguments": ""}', ("a", "{}")),
        ('{"type": "function", "name": "a", "parameters": {"x": 1}}', ("a", '{"x": 1}')),
        ('{"type": "function", "function": {"name": "a", "arguments": {"x": 1}}}', ("a", '{"x": 1}')),
        ('{"name": "a", "id": "c1", "type": "function"}', ("a", "{}")),
        ('{"name": "a", "x": 1}', None),
        ('{"function": {"name": "a", "x": 1}}', None),
        ('{"name": "a", "arguments": "{\\"x\\": "}', None),
        ('{"name": "a", "arguments": "x"}', None),
        ('{"name": "a", "arguments": [1]}', None),
        ('{"name": "a", "arguments": 1}', None),
        ("{}", None),
        ("", None),
        ("[1]", None),
        ('{"name": 5}', None),
        ('{"name": "a"', None),
        ('{"name": "a",}', None),
        ('{"name": "a"} x', None),
        ('{"name": "a", 5: 6}', None),
        ('{"name" "a"}', None),
        ('{"name": "a", "arguments": {x}}', None),
    ],
)
def test_what_is_a_call(text: str, call: tuple[str, str] | None) -> None:
    assert read_calls(text) == ([] if call is None else [call])


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "a"}, {"name": "b", "arguments": {"x": [1]}}]',
        '{"name": "a"}\n{"name": "b", "arguments": {"x": [1]}}',
        '{"name": "a"}; {"name": "b", "parameters": {"x": [1]}}',
    ],
)
def test_several_calls(text: str) -> None:
    assert read_calls(text) == [("a", "{}"), ("b", '{"x": [1]}')]
    assert read_calls(text + " or so") == []


def test_numbers_of_any_length() -> None:
    arguments = '{"x": %s}' % ("9" * 5000)
    assert read_calls(f'{{"name": "a", "arguments": {arguments}}}') == [("a", arguments)]


def test_what_is_too_deep_to_be_read_is_no_call() -> None:
    assert read_calls('{"name": "a", "arguments": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}}") == []


@given(st.dictionaries(st.sampled_from(["name", "arguments", "x"]), JSON), st.sampled_from([None, 1]))
def test_any_object_is_read_as_json_is(members: dict[str, Any], indent: int | None) -> None:
    calls = read_calls(json.dumps(members, indent=indent))
    arguments = members.get("arguments")
    if isinstance(arguments, str):
        arguments = _loaded(arguments.strip() or "null")
    is_complete = "arguments" in members or "x" not in members
    if not isinstance(members.get("name"), str) or not isinstance(arguments, dict | None) or not is_complete:
        assert not calls
        return
    ((name, written),) = calls
    assert name == members["name"]
    assert repr(json.loads(written)) == repr(arguments or {})


def _loaded(text: str) -> Any:
    """JSON, or a text that is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
