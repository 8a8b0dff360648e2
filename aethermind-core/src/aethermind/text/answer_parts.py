"""The parts of an answer: content, reasoning and tool calls, and the interface of the parsers that find them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

__all__ = ["AnswerPart", "Content", "PartParser", "Reasoning", "ToolCall"]


class Content(NamedTuple):
    """Text of the answer for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text of the model's reasoning (thinking), which precedes the content."""

    text: str


class ToolCall(NamedTuple):
    """A function to call: the index of the call in the answer, the function's name, its arguments as JSON text."""

    call_index: int
    name: str
    arguments: str


AnswerPart = Content | Reasoning | ToolCall


class PartParser(Protocol):
    """Parses the text of one answer incrementally. Mutable."""

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Add text; yield the parts that it completes."""
        ...

    def finish(self) -> Iterator[AnswerPart]:
        """End the text; yield what was held back."""
        ...
