"""What `/v1/responses` takes as input: messages, calls and their results, thoughts, as a conversation of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from aethermind.server.openai.json_body import StrictModel

__all__ = ["InputItem", "chat_messages"]

_Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(StrictModel):
    """A piece of text; that of an answer may come back as it was given."""

    place = "input.content"
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Message(StrictModel):
    """A turn. Its id and status are taken back as they were given, and mean nothing."""

    place = "input"
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]
    id: str | None = None
    status: _Status | None = None
    phase: str | None = None


class FunctionCall(StrictModel):
    """A call that the model made."""

    place = "input"
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: _Status | None = None


class FunctionCallOutput(StrictModel):
    """What came of a call."""

    place = "input"
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextPart]
    id: str | None = None
    status: _Status | None = None


class ReasoningPart(StrictModel):
    """A piece of a thought."""

    place = "input.content"
    type: Literal["reasoning_text"]
    text: str


class Reasoning(StrictModel):
    """What the model thought before what follows."""

    place = "input"
    type: Literal["reasoning"]
    content: list[ReasoningPart] | None = None
    summary: list[Any] | None = None
    id: str | None = None
    status: _Status | None = None


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return f"[{kind}]"


InputItem = Annotated[
    Annotated[Message, Tag("[message]")]
    | Annotated[FunctionCall, Tag("[function_call]")]
    | Annotated[FunctionCallOutput, Tag("[function_call_output]")]
    | Annotated[Reasoning, Tag("[reasoning]")],
    Discriminator(_kind),
]
"""An item. The tags of the union are in brackets, by which errors know that no client wrote them."""


def chat_messages(instructions: str | None, given: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages of a chat. Thoughts, text and calls that follow each other are one turn of the assistant."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given:
        if isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            _turn(messages, "tool_calls").setdefault("tool_calls", []).append(call)
        elif isinstance(item, Reasoning):
            thought = "".join(part.text for part in item.content or ())
            messages.append({"role": "assistant", "reasoning_content": thought})
        elif item.role == "assistant":
            _turn(messages, "content")["content"] = _text(item.content)
        else:
            messages.append({"role": item.role, "content": _text(item.content)})
    return messages


def _turn(messages: list[dict[str, Any]], adding: str) -> dict[str, Any]:
    """The assistant's turn to add to: the last message, unless that has more than a thought and a text already."""
    last = messages[-1] if messages else {}
    is_open = last.get("role") == "assistant" and (adding == "tool_calls" or not {"content", "tool_calls"} & set(last))
    if not is_open:
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
