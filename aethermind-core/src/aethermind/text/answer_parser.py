"""A model's text told apart while it is written: what it thinks, what it says, and which tools it calls.

Models mark these with tags of their own (`<think>…</think>`, `<tool_call>{"name": …, "arguments": …}</tool_call>`). An
`AnswerFormat` declares the tags, and one parser serves all that have such. Text that may be the beginning of a tag is
held back until it is decided, so pieces come out the same however the text was cut on its way in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aethermind.text.written_call import read_call

__all__ = ["AnswerFormat", "AnswerParser", "Content", "Reasoning", "ToolCall"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The tags of a family of models; None where it has none. A tool call's body is one JSON object with `name` and
    `arguments`.
    """

    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text that the model wrote for itself."""

    text: str


class ToolCall(NamedTuple):
    """A function to call: its place among the answer's calls, its name, its arguments as JSON text."""

    place: int
    name: str
    arguments: str


Piece = Content | Reasoning | ToolCall


class AnswerParser:
    """Takes an answer's text as it grows and tells the pieces. Mutable; one for each answer.

    What is inside tool-call tags and is no call comes out as content, tags and all: nothing is lost. White space
    next to tags is the format's and is dropped; all other is the model's.
    """

    def __init__(self, format: AnswerFormat) -> None:
        self._openings = {pair[0]: pair for pair in (format.reasoning, format.tool_call) if pair is not None}
        self._reasoning = format.reasoning
        self._open: tuple[str, str] | None = None
        self._held = ""
        """What may be the beginning of a tag."""
        self._kept: list[str] = []
        """What is none and waits all the same, in pieces: a call's body, and white space that a tag would drop."""
        self._num_calls = 0
        self._is_behind_tag = False
        """Whether white space that comes next stands behind a tag."""

    def push(self, text: str) -> Iterator[Piece]:
        """Take more of the text; yields what is decided by it."""
        self._held += text
        yield from self._decided()

    def finish(self) -> Iterator[Piece]:
        """The text has ended; yields what was held back. A tag that was never closed ends with it."""
        held = self._taken(self._held)
        self._held = ""
        if self._open is None or self._open is self._reasoning:
            yield from self._told(held)
        elif (call := self._call(held)) is not None:
            yield call
        else:
            yield Content(self._open[0] + held)

    def _decided(self) -> Iterator[Piece]:
        while True:
            tags: Collection[str] = self._openings if self._open is None else (self._open[1],)
            tag, place = _first(self._held, tags)
            if place < 0:
                break
            inside, self._held = self._taken(self._held[:place]), self._held[place + len(tag) :]
            yield from self._left(inside, tag)
        end = len(self._held) - max((_overlap(self._held, tag) for tag in tags), default=0)
        certain, self._held = self._held[:end], self._held[end:]
        words = certain.rstrip() if tags else certain
        if words and (self._open is None or self._open is self._reasoning):
            yield from self._told(self._taken(words))
            certain = certain[len(words) :]
        if certain:
            self._kept.append(certain)

    def _taken(self, text: str) -> str:
        """What was kept, and `text` behind it."""
        whole = "".join((*self._kept, text))
        self._kept.clear()
        return whole

    def _left(self, inside: str, tag: str) -> Iterator[Piece]:
        """What stood before a tag, and the change that the tag makes."""
        if self._open is None:
            yield from self._told(inside.rstrip())
            self._open = self._openings[tag]
        elif self._open is self._reasoning:
            yield from self._told(inside.rstrip())
            self._open = None
        else:
            call = self._call(inside)
            yield Content(self._open[0] + inside + tag) if call is None else call
            self._open = None
        self._is_behind_tag = True

    def _told(self, text: str) -> Iterator[Piece]:
        if self._is_behind_tag:
            text = text.lstrip()
        if text:
            self._is_behind_tag = False
            yield Content(text) if self._open is None else Reasoning(text)

    def _call(self, body: str) -> ToolCall | None:
        call = read_call(body)
        if call is None:
            return None
        self._num_calls += 1
        return ToolCall(self._num_calls - 1, *call)


def _first(text: str, tags: Iterable[str]) -> tuple[str, int]:
    """The tag that occurs first and where, or -1."""
    places = [(place, tag) for tag in tags if (place := text.find(tag)) >= 0]
    if not places:
        return "", -1
    place, tag = min(places)
    return tag, place


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
