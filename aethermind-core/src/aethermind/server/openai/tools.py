"""Tool calling: the schemas of tools and tool calls, and the constraint and parser of a required call."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from aethermind.sampling.json_schemas import rewritten
from aethermind.sampling.params import MAX_GRAMMAR_CHARS, StructuredOutputs
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.text.answer_format import AnswerFormat
from aethermind.text.answer_parts import Content, Reasoning, ToolCall
from aethermind.text.harmony import HARMONY_CALLS
from aethermind.text.tool_call_json import read_calls

__all__ = [
    "RequestToolCall",
    "RequiredCallParser",
    "Tool",
    "ToolChoice",
    "ToolName",
    "auto_constraint",
    "call_constraint",
    "call_id",
    "delta_of",
]

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
"""The name of a tool. OpenAI's API has names of up to 64 characters, Anthropic's of up to 128."""


class Function(StrictModel):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    location = "tools.function"
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool that the model may call. Functions are the only type supported."""

    location = "tools"
    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    """The name of one of the tools."""

    location = "tool_choice.function"
    name: str


class NamedTool(StrictModel):
    """The tool that the completion has to call."""

    location = "tool_choice"
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(StrictModel):
    """The function of a call; `arguments` is JSON text, as the model generated it."""

    location = "messages.tool_calls.function"
    name: str
    arguments: str


class RequestToolCall(StrictModel):
    """A tool call in an earlier message of the assistant."""

    location = "messages.tool_calls"
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self, *, keep_json_text: bool = False) -> dict[str, Any]:
        """The call in the format of chat templates: the arguments as an object, or as JSON text."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            raise ApiError(400, "A tool call's arguments are no JSON.", param="messages") from None
        function = {"name": self.function.name, "arguments": self.function.arguments if keep_json_text else arguments}
        return {"id": self.id, "type": self.type, "function": function}


def call_constraint(tools: Sequence[Tool], choice: ToolChoice | None) -> StructuredOutputs | None:
    """The constraint that makes the completion a call of the chosen tool; None if the model decides. ApiError 400."""
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        raise ApiError(400, "tool_choice asks for a call, and there are no tools.", param="tool_choice")
    if choice == "required":
        calls = [_call_schema(tool.function, f"#/anyOf/{index}") for index, tool in enumerate(tools)]
        return StructuredOutputs(json={"anyOf": calls})
    assert isinstance(choice, NamedTool)
    name = choice.function.name
    chosen = next((tool.function for tool in tools if tool.function.name == name), None)
    if chosen is None:
        raise ApiError(400, f"tool_choice names {name!r:.80}, which is not among the tools.", param="tool_choice")
    return StructuredOutputs(json=_call_schema(chosen, "#"))


def auto_constraint(tools: Sequence[Tool], format: AnswerFormat, *, is_thinking: bool) -> StructuredOutputs | None:
    """The constraint on calls that the model decides to write: from the tag that opens them on, they are calls of tools
    with arguments by the tools' schemas. None for a format without tags. `is_thinking`: the prompt opens reasoning.
    """
    if not tools:
        return None
    texts = tuple(tool.function.model_dump_json(exclude={"description"}) for tool in tools)
    return _auto_constraint(texts, format, is_thinking)


@lru_cache(maxsize=64)
def _auto_constraint(texts: Sequence[str], format: AnswerFormat, is_thinking: bool) -> StructuredOutputs | None:
    triggers = (
        [(opening, "", written, False) for opening, written in HARMONY_CALLS.items()]
        if format.is_harmony
        else [(one.opening, one.closing, one.written, one.is_list) for one in format.tool_calls if one.written]
    )
    if not (triggers or format.has_bare_calls):
        return None
    functions = [_without_annotations(Function.model_validate_json(text)) for text in texts]
    tags: list[dict[str, Any]] = []
    for opening, closing, written, is_list in triggers:
        contents = [content for pattern in written for content in _contents(pattern, functions)]
        tag: dict[str, Any] = {"begin": opening, "content": {"type": "or", "elements": contents}, "end": closing}
        if is_list:
            tag["content"] = {"type": "list", "element": tag["content"]}
        if format.is_harmony:
            tag["at_start"] = not opening.startswith("<|")
        elif not closing:
            tag["repeats"] = True
        tags.append(tag)
    if format.has_bare_calls:
        tags.append(_bare_call(functions))
    structure: dict[str, Any] = {"type": "triggered_tags", "triggers": [tag["begin"] for tag in tags], "tags": tags}
    if format.reasoning is not None:
        begin, end = format.reasoning
        structure["reasoning"] = {"begin": begin, "end": end, "is_open": is_thinking}
    text = json.dumps({"type": "structural_tag", "format": {**structure, "is_lenient": True}}, ensure_ascii=False)
    return StructuredOutputs(structural_tag=text) if len(text) <= MAX_GRAMMAR_CHARS else None


def _bare_call(functions: Sequence[Function]) -> dict[str, Any]:
    """The tag of a call in JSON without tags around it, with which an answer begins (Llama 3).

    An object that begins in the same way with another name is free text.
    """
    contents = [
        _sequence(
            _text(f'{function.name}", "'),
            {"type": "or", "elements": [_text("parameters"), _text("arguments")]},
            _text('": '),
            {"type": "json_schema", "json_schema": _parameters(function)},
            _text("}"),
        )
        for function in functions
    ]
    others = {"type": "regex", "pattern": '[^"]+', "excludes": [function.name for function in functions]}
    content = {"type": "or", "elements": [*contents, _sequence(others, _text('"'))]}
    return {"begin": '{"name": "', "content": content, "end": "", "at_start": True}


_PLACEHOLDER = re.compile("(\n|NAME|JSON|LIST|XML|KEYS)")
_WHITE_SPACE = {"type": "regex", "pattern": "[ \\n]{0,2}"}
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_JSON_KINDS = {"integer", "number", "boolean", "array", "object"}


def _contents(pattern: str, functions: Sequence[Function]) -> Iterator[dict[str, Any]]:
    """The contents of structural tags for a pattern (see `CallSyntax.written`): one for each function it names."""
    for function in functions if "NAME" in pattern else functions[:1]:
        elements: list[dict[str, Any]] = []
        for piece in filter(None, _PLACEHOLDER.split(pattern)):
            if piece == "\n":
                elements.append(_WHITE_SPACE)
            elif piece == "JSON":
                elements.append({"type": "json_schema", "json_schema": _parameters(function)})
            elif piece == "LIST":
                calls = [_call_schema(one, f"#/items/anyOf/{index}") for index, one in enumerate(functions)]
                for call in calls:
                    call["properties"]["id"] = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
                schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
                elements.append({"type": "json_schema", "json_schema": schema})
            elif piece == "XML":
                elements += _elements(function, "<parameter={}>", "", "</parameter>")
            elif piece == "KEYS":
                elements += _elements(function, "<arg_key>{}</arg_key>", "<arg_value>", "</arg_value>")
            else:
                elements.append(_text(function.name if piece == "NAME" else piece))
        yield _sequence(*elements)


def _without_annotations(function: Function) -> Function:
    """A function with the schema of its parameters, without the texts that constrain nothing."""

    def remove(schema: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in schema.items() if key not in ("description", "title", "examples")}

    return function.model_copy(update={"parameters": rewritten(function.parameters, remove)})


def _parameters(function: Function) -> dict[str, Any]:
    """The schema of a function's arguments: any object without `strict`, which is the default."""
    return _ANY_OBJECT if function.strict is False or not function.parameters else function.parameters


def _may_have_any_name(schema: dict[str, Any]) -> bool:
    """Whether an object may have properties besides those that its schema names itself, which are often all."""
    others = schema.get("additionalProperties")
    if schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "patternProperties"} or isinstance(others, dict):
        return True
    return others is not False and not isinstance(schema.get("properties"), dict)


def _elements(function: Function, key: str, opening: str, closing: str) -> Iterator[dict[str, Any]]:
    """The contents of parameters as elements, in the order of the schema. Strings are written without quotes."""
    schema = _parameters(function)
    properties, required = schema.get("properties", {}), schema.get("required")
    line_break = {"type": "regex", "pattern": "\\n?"} if not opening else _text("")
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if _may_have_any_name(schema):
        any_name = {"type": "regex", "pattern": "[^<>\\n]+"}
        before, after = key.split("{}")
        begin = _sequence(_text(before), any_name, _text(after))
        any_text = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": closing}
        element = _sequence(begin, *([_WHITE_SPACE] if opening else []), any_text, _WHITE_SPACE)
        yield {"type": "or", "elements": [{"type": "list", "element": element}, _text("")]}
        return
    for name, parameter in properties.items() if isinstance(properties, dict) else ():
        given = parameter if isinstance(parameter, dict) else {}
        kind, choices = given.get("type"), given.get("enum")
        kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"]
        value: dict[str, Any] = {"type": "json_schema", "json_schema": {**definitions, **given}}
        if kind == "string" and isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
            value = {"type": "or", "elements": [_text(choice) for choice in choices]}
        elif not (kinds and all(isinstance(one, str) and one in _JSON_KINDS for one in kinds)):
            value = {"type": "any_text"}
        begin = _sequence(_text(key.format(name)), *((_WHITE_SPACE, _text(opening)) if opening else ()))
        if value["type"] == "any_text":
            element = _sequence(begin, {"type": "tag", "begin": "", "content": value, "end": closing}, _WHITE_SPACE)
        else:
            element = _sequence(begin, line_break, value, line_break, _text(closing), _WHITE_SPACE)
        is_required = isinstance(required, list) and name in required
        yield element if is_required else {"type": "or", "elements": [element, _text("")]}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


class RequiredCallParser:
    """Parses a completion that `call_constraint` made a call, with the interface of `AnswerParser`. Mutable."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def push(self, text: str) -> Iterator[Content | Reasoning | ToolCall]:
        """Take more of the text. The call is returned by `finish`, when it is complete."""
        self._texts.append(text)
        yield from ()

    def finish(self) -> Iterator[Content | Reasoning | ToolCall]:
        """The call; the text as content if `max_tokens` has cut the call short."""
        text = "".join(self._texts)
        calls = read_calls(text)
        yield ToolCall(0, *calls[0]) if len(calls) == 1 else Content(text)


def delta_of(part: Content | Reasoning | ToolCall) -> dict[str, Any]:
    """A part of the output as the delta of a chunk."""
    if isinstance(part, Content):
        return {"content": part.text}
    if isinstance(part, Reasoning):
        return {"reasoning_content": part.text}
    function = {"name": part.name, "arguments": part.arguments}
    call = {"index": part.call_index, "id": call_id(), "type": "function", "function": function}
    return {"tool_calls": [call]}


def call_id() -> str:
    """A new id of a call: nine letters and digits, the only format that Mistral's chat templates accept."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


def _call_schema(function: Function, pointer: str) -> dict[str, Any]:
    """The JSON schema of calls of a function, for the position `pointer` (RFC 6901) of the whole schema."""
    parameters = function.parameters or {"type": "object"}
    arguments = _relocated(parameters, f"{pointer}/properties/arguments")
    properties = {"name": {"const": function.name}, "arguments": arguments}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _relocated(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """A root schema as the subschema at `pointer` of another: its local references are relative to that position.

    A subschema with an `$id` is not changed, because its references are relative to the `$id`.
    """

    def relocate(part: dict[str, Any]) -> dict[str, Any] | None:
        if isinstance(part.get("$id"), str):
            return None
        target = part.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            return part | {"$ref": pointer + target[1:]}
        return part

    relocated: dict[str, Any] = rewritten(schema, relocate)
    return relocated
