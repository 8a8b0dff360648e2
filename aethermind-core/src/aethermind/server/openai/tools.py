"""Tool calling: the schemas of tools and tool calls, and the constraint and parser of a required call."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from aethermind.sampling.json_schemas import rewritten
from aethermind.sampling.params import StructuredOutputs
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.text.answer_parts import Content, Reasoning, ToolCall
from aethermind.text.tool_call_json import read_calls

__all__ = [
    "RequestToolCall",
    "RequiredCallParser",
    "Tool",
    "ToolChoice",
    "ToolName",
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
