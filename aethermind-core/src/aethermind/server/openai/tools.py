"""Tools that a model may call: how clients offer them, how conversations recall them, and how a call is forced."""

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
from aethermind.text.answer_parser import Content, Reasoning, ToolCall
from aethermind.text.written_call import read_calls

__all__ = ["ForcedCall", "RecalledCall", "Tool", "ToolChoice", "call_id", "delta_of", "demand_for"]

_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(StrictModel):
    """A function's name, what it is good for, and a JSON schema of its arguments."""

    place = "tools.function"
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """Something that the model may call. Functions are the only kind."""

    place = "tools"
    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    """The name of an offered function."""

    place = "tool_choice.function"
    name: str


class NamedTool(StrictModel):
    """The tool to call."""

    place = "tool_choice"
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(StrictModel):
    """What was called; `arguments` is JSON text, as the model wrote it."""

    place = "messages.tool_calls.function"
    name: str
    arguments: str


class RecalledCall(StrictModel):
    """A call in an assistant's earlier turn."""

    place = "messages.tool_calls"
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self, *, are_texts: bool = False) -> dict[str, Any]:
        """The call as chat templates take it: with the arguments as an object, or as the text they are."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            raise ApiError(400, "A tool call's arguments are no JSON.", param="messages") from None
        function = {"name": self.function.name, "arguments": self.function.arguments if are_texts else arguments}
        return {"id": self.id, "type": self.type, "function": function}


def demand_for(tools: Sequence[Tool], choice: ToolChoice | None) -> StructuredOutputs | None:
    """What the answer has to look like so that the chosen call comes out; None where the model decides."""
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        raise ApiError(400, "tool_choice asks for a call, and there are no tools.", param="tool_choice")
    if choice == "required":
        calls = [_call(tool.function, f"#/anyOf/{index}") for index, tool in enumerate(tools)]
        return StructuredOutputs(json={"anyOf": calls})
    assert isinstance(choice, NamedTool)
    name = choice.function.name
    chosen = next((tool.function for tool in tools if tool.function.name == name), None)
    if chosen is None:
        raise ApiError(400, f"tool_choice names {name!r:.80}, which is not among the tools.", param="tool_choice")
    return StructuredOutputs(json=_call(chosen, "#"))


class ForcedCall:
    """Reads an answer that `demand_for` made a call, like an `AnswerParser`. Mutable; one for each answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def push(self, text: str) -> Iterator[Content | Reasoning | ToolCall]:
        """Take more of the text; a call is told when it is complete."""
        self._texts.append(text)
        yield from ()

    def finish(self) -> Iterator[Content | Reasoning | ToolCall]:
        """The text has ended; one cut short is content, so that nothing is lost."""
        text = "".join(self._texts)
        calls = read_calls(text)
        yield ToolCall(0, *calls[0]) if len(calls) == 1 else Content(text)


def delta_of(piece: Content | Reasoning | ToolCall) -> dict[str, Any]:
    """A piece as the delta of a stream's chunk."""
    if isinstance(piece, Content):
        return {"content": piece.text}
    if isinstance(piece, Reasoning):
        return {"reasoning_content": piece.text}
    function = {"name": piece.name, "arguments": piece.arguments}
    call = {"index": piece.place, "id": call_id(), "type": "function", "function": function}
    return {"tool_calls": [call]}


def call_id() -> str:
    """An id for a call: nine letters and digits, which are all that chat templates of Mistral take."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


def _call(function: Function, place: str) -> dict[str, Any]:
    """A schema of calls of the function, which stands at `place` of the whole schema."""
    parameters = function.parameters or {"type": "object"}
    properties = {"name": {"const": function.name}, "arguments": _moved(parameters, f"{place}/properties/arguments")}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A schema that was a whole one as the part at `place` of another: its references to itself lead there.

    One with an `$id` stays as it is, for references in it are to that.
    """

    def lead_there(part: dict[str, Any]) -> dict[str, Any] | None:
        if isinstance(part.get("$id"), str):
            return None
        to = part.get("$ref")
        if isinstance(to, str) and (to == "#" or to.startswith("#/")):
            return part | {"$ref": place + to[1:]}
        return part

    moved: dict[str, Any] = rewritten(schema, lead_there)
    return moved
