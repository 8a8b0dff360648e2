"""Syntaxes of tool calls between tags, other than JSON objects: each reader returns names and arguments as JSON text.

    read_any       what the families write between `<tool_call>` tags: JSON, XML of functions, keys and values
    read_named     NAME[ARGS]{…}, or a list of JSON objects: Mistral
    read_sections  a section for each call, with the name before the JSON: DeepSeek
    read_python    [name(key=value), …]: Llama 3.2 and 4, <|python_tag|> of Llama 3.1

A reader returns an empty list for a text that has any part that is not a call. XML and key-value syntaxes write
strings without quotes; a value is a string where the schema of the parameter says so, or where it is not JSON.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from aethermind.text.tool_call_json import as_arguments, is_json, read_calls

__all__ = ["Calls", "Functions", "ReadCalls", "read_any", "read_named", "read_python", "read_sections"]

Calls = list[tuple[str, str]]
"""Names and arguments (JSON text)."""

Functions = Mapping[str, Mapping[str, Any] | None]
"""The JSON schemas of the parameters of functions, by name; None where it is not known."""

ReadCalls = Callable[[str, Functions], Calls]

_NAME = r"[\w.\-]+"
_FUNCTION = re.compile(rf"\s*<function=({_NAME})>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>(.*?)</parameter>\s*", re.DOTALL)
_KEYED_CALL = re.compile(rf"\s*({_NAME})\s*(<arg_key>.*)?\s*", re.DOTALL)
_KEY_AND_VALUE = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_NAMED_CALL = re.compile(rf"\s*({_NAME})\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(\{{.*)", re.DOTALL)
_SECTION = re.compile(r"\s*<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)(?:<｜tool▁call▁end｜>|$)\s*", re.DOTALL)
_FENCED = re.compile(rf"\s*({_NAME})\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
_MAX_PYTHON_CHARS = 100_000


def read_any(text: str, functions: Functions) -> Calls:
    """Read JSON objects, `<function=…>` elements, or a name with `<arg_key>` and `<arg_value>` elements."""
    begin = text.lstrip()[:1]
    if begin == "<":
        return _read_xml(text, functions)
    if begin in ("{", "["):
        return read_calls(text)
    call = _KEYED_CALL.fullmatch(text)
    if call is None or (call[2] is None and call[1] not in functions):
        return []
    pairs = _whole(_KEY_AND_VALUE, call[2] or "")
    return [] if pairs is None else [(call[1], _arguments(call[1], [(m[1].strip(), m[2]) for m in pairs], functions))]


def _read_xml(text: str, functions: Functions) -> Calls:
    calls = []
    for function in _whole(_FUNCTION, text) or ():
        parameters = _whole(_PARAMETER, function[2].strip())
        if parameters is None:
            return []
        values = [(parameter[1].strip(), _without_line_breaks(parameter[2])) for parameter in parameters]
        calls.append((function[1], _arguments(function[1], values, functions)))
    return calls


def read_named(text: str, _functions: Functions) -> Calls:
    """Read a name followed by a JSON object, or JSON objects with names."""
    call = _NAMED_CALL.fullmatch(text)
    if call is None:
        return read_calls(text)
    arguments = as_arguments(call[2])
    return [] if arguments is None else [(call[1], arguments)]


def read_sections(text: str, _functions: Functions) -> Calls:
    """Read sections: `function`, a separator, the name and fenced JSON (V3, R1), or the name and JSON (V3.1)."""
    calls = []
    for section in _whole(_SECTION, text) or ():
        name, body = section[1].strip(), section[2]
        if fenced := _FENCED.fullmatch(body):
            name, body = fenced[1], fenced[2]
        arguments = as_arguments(body)
        if arguments is None or not re.fullmatch(_NAME, name):
            return []
        calls.append((name, arguments))
    return calls


def read_python(text: str, functions: Functions) -> Calls:
    """Read calls of functions with named arguments, whose values are literals; JSON's constants count as literals."""
    if text.lstrip().startswith("{"):
        return read_calls(text)
    if len(text) > _MAX_PYTHON_CHARS:
        return []
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(node, functions) for node in nodes]
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return []


def _python_call(node: ast.expr, functions: Functions) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if name not in functions:  # Llama 3.1 writes `brave_search.call(query="…")`
        name = name.removesuffix(".call")
    if not re.fullmatch(_NAME, name) or (functions and name not in functions):
        raise ValueError("not a function")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an argument has no name")
        arguments[keyword.arg] = _literal(keyword.value)
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _literal(node: ast.expr) -> Any:
    """Return a literal as a JSON value. ValueError for other expressions."""
    constants = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is not a string")
        return dict(zip(keys, map(_literal, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("not a value of JSON")
    return value


def _arguments(name: str, values: list[tuple[str, str]], functions: Functions) -> str:
    """Return values without types as a JSON object, verbatim where they are JSON."""
    schema = functions.get(name) or {}
    properties = schema.get("properties")
    members = []
    for key, value in values:
        parameter = properties.get(key) if isinstance(properties, Mapping) else None
        members.append(f"{_quoted(key)}: {_json_value(value, parameter if isinstance(parameter, Mapping) else {})}")
    return f"{{{', '.join(members)}}}"


def _json_value(text: str, schema: Mapping[str, Any]) -> str:
    """Return a value without a type as JSON: a string if the schema says so, or if it is not JSON.

    Models also write the constants of Python.
    """
    kinds = schema.get("type")
    kinds = set(kinds) if isinstance(kinds, list) else {kinds}
    stripped = text.strip()
    if kinds <= {"string", "null"} and not ("null" in kinds and stripped == "null"):
        return _quoted(text)
    if kinds != {None}:
        stripped = {"True": "true", "False": "false", "None": "null"}.get(stripped, stripped)
    return stripped if is_json(stripped) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _without_line_breaks(text: str) -> str:
    """Return a value without the line breaks that the templates write around it."""
    return text.removeprefix("\n").removesuffix("\n")


def _whole(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """Return the matches of which a text consists, None if there is anything else in it."""
    matches, position = [], 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            return None
        matches.append(match)
        position = match.end()
    return matches
