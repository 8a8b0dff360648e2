"""A model's text told apart while it is written: what it thinks, what it says, and which tools it calls.

Models mark these with tags of their own (`<think>…</think>`, `<tool_call>{"name": …, "arguments": …}</tool_call>`), or
write a call and nothing else. An `AnswerFormat` declares which, and one parser serves all that have such. Text that may
be the beginning of a tag is held back until it is decided, so pieces come out the same however the text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from aethermind.text.tagged_call import TaggedCall, overlap
from aethermind.text.written_call import read_calls

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerFormat", "AnswerParser", "Content", "Reasoning", "ToolCall"]

_THOUGHTS = ("<think>", "</think>")

_BARE_CALL = re.compile(r'(?:\[\s*)?\{\s*"')
_BARE_CALL_SO_FAR = re.compile(r"(?:\[\s*)?(?:\{\s*)?")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a family of models marks what is not for the user; None and False where it does not.

    Thoughts and calls stand between the two tags of a pair. The body of a call is a JSON object with `name` and
    `arguments`, or several. With `has_bare_calls`, an answer that is such JSON from its first character on is calls.
    """

    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    has_bare_calls: bool = False

    def for_tokens(self, tokenizer: Tokenizer) -> AnswerFormat:
        """The format of a model with these tokens: one that has the usual tags of thoughts as tokens thinks, whatever
        its architecture. Models of Qwen2 and Llama were trained to by DeepSeek and others.
        """
        is_trained = all(tokenizer.token_to_id(tag) is not None for tag in _THOUGHTS)
        return replace(self, reasoning=_THOUGHTS) if self.reasoning is None and is_trained else self

    def is_thinking(self, prompt: str) -> bool:
        """Whether an answer begins among thoughts, because the prompt ends with the tag that opens them."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


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


class _Inside(Enum):
    """What the next character belongs to."""

    BEGINNING = auto()
    """Nothing yet: white space and what may be a tag were all."""
    THOUGHTS = auto()
    TEXT = auto()
    CALL = auto()
    BARE_CALLS = auto()


class AnswerParser:
    """Takes an answer's text as it grows and tells the pieces. Mutable; one for each answer.

    Tags of thoughts count where an answer begins, and are words behind its first one. What is inside tool-call tags and
    is no call comes out as content, tags and all: nothing is lost. White space next to tags is the format's and is
    dropped; all other is the model's.
    """

    def __init__(self, format: AnswerFormat, *, is_thinking: bool = False, functions: Collection[str] = ()) -> None:
        """`is_thinking` says that the prompt opened the thoughts, `functions` what bare calls can name."""
        self._reasoning = format.reasoning
        self._tool_call = format.tool_call
        self._bare_names = frozenset(functions if format.has_bare_calls else ())
        self._was_opened = is_thinking and format.reasoning is not None
        self._inside = _Inside.BEGINNING
        self._held = ""
        """What may be the beginning of a tag."""
        self._kept: list[str] = []
        """What is none and waits all the same: white space that a tag would drop, and bare calls."""
        self._call: TaggedCall | None = None
        self._space_before_call = ""
        self._num_calls = 0
        self._is_behind_tag = self._was_opened
        """Whether white space that comes next stands behind a tag."""

    def push(self, text: str) -> Iterator[Piece]:
        """Take more of the text; yields what is decided by it."""
        self._held += text
        before = None
        while self._held and self._inside is not before:  # a part that ended leaves another one to go on in
            before = self._inside
            if before is _Inside.BEGINNING:
                self._begin()
            elif before is _Inside.THOUGHTS:
                yield from self._think()
            elif before is _Inside.TEXT:
                yield from self._say()
            elif before is _Inside.CALL:
                yield from self._go_on_calling()
            else:
                self._kept.append(self._held)
                self._held = ""

    def finish(self) -> Iterator[Piece]:
        """The text has ended; yields what was held back. A tag that was never closed ends with it."""
        if self._call is not None:
            yield from self._unclosed(self._call)
            return
        rest = self._taken(self._held)
        self._held = ""
        if self._inside is _Inside.BARE_CALLS:
            calls = read_calls(rest)
            if calls and self._bare_names.issuperset(name for name, _ in calls):
                yield from self._called(calls)
                return
            self._inside = _Inside.TEXT
        yield from self._told(rest)

    def _begin(self) -> None:
        """Decide what an answer begins with, or what stands behind its thoughts."""
        words = self._held.lstrip()
        self._kept.append(self._held[: len(self._held) - len(words)])
        self._held = words
        if not words:
            return
        opening = self._reasoning[0] if self._reasoning is not None else ""
        if opening and words.startswith(opening):
            self._taken("")
            self._held = words[len(opening) :]
            self._go_into(_Inside.THOUGHTS, is_behind_tag=True)
        elif opening.startswith(words):
            return
        elif self._was_opened:
            self._go_into(_Inside.THOUGHTS)
        elif self._bare_names and _BARE_CALL.match(words):
            self._go_into(_Inside.BARE_CALLS)
        elif not (self._bare_names and _BARE_CALL_SO_FAR.fullmatch(words)):
            self._go_into(_Inside.TEXT)

    def _go_into(self, part: _Inside, *, is_behind_tag: bool = False) -> None:
        self._was_opened = False
        self._inside = part
        if is_behind_tag:
            self._is_behind_tag = True

    def _think(self) -> Iterator[Piece]:
        assert self._reasoning is not None
        thoughts, found = self._up_to(self._reasoning[1])
        yield from self._told(thoughts.rstrip() if found else thoughts)
        if found:
            self._go_into(_Inside.BEGINNING, is_behind_tag=True)

    def _say(self) -> Iterator[Piece]:
        if self._tool_call is None:
            held, self._held = self._taken(self._held), ""
            yield from self._told(held)
            return
        text, found = self._up_to(self._tool_call[0])
        words = text.rstrip() if found else text
        is_right_behind = self._is_behind_tag and not words
        yield from self._told(words)
        if found:
            self._space_before_call = "" if is_right_behind else text[len(words) :]
            self._call = TaggedCall(self._tool_call[1])
            self._go_into(_Inside.CALL)

    def _up_to(self, tag: str) -> tuple[str, bool]:
        """The text before `tag`, or what is certain of it, without white space at its end; and whether the tag came."""
        before, found, behind = self._held.partition(tag)
        if found:
            self._held = behind
            return self._taken(before), True
        end = len(self._held) - overlap(self._held, tag)
        certain, self._held = self._held[:end], self._held[end:]
        words = certain.rstrip()
        text = self._taken(words) if words else ""
        if space := certain[len(words) :]:
            self._kept.append(space)
        return text, False

    def _go_on_calling(self) -> Iterator[Piece]:
        assert self._call is not None
        behind = self._call.push(self._held)
        self._held = behind or ""
        if behind is not None:
            yield from self._closed(self._call.body)

    def _closed(self, body: str) -> Iterator[Piece]:
        """What stood between tool-call tags: calls, or text."""
        assert self._tool_call is not None
        self._call = None
        self._go_into(_Inside.TEXT)
        if calls := read_calls(body):
            yield from self._called(calls)
        else:
            self._is_behind_tag = False
            yield Content(self._space_before_call + self._tool_call[0] + body + self._tool_call[1])

    def _unclosed(self, call: TaggedCall) -> Iterator[Piece]:
        """The text ended inside a call. If it was none, a tag that seemed to be in one of its strings has closed it."""
        assert self._tool_call is not None
        opening, closing = self._tool_call
        text = call.body
        if calls := read_calls(text):
            yield from self._called(calls)
            return
        body, tag, behind = text.partition(closing)
        if not tag:
            yield Content(self._space_before_call + opening + text)
            return
        yield from self._closed(body)
        yield from self.push(behind)
        yield from self.finish()

    def _called(self, calls: list[tuple[str, str]]) -> Iterator[Piece]:
        for name, arguments in calls:
            yield ToolCall(self._num_calls, name, arguments)
            self._num_calls += 1
        self._is_behind_tag = True

    def _taken(self, text: str) -> str:
        """What was kept, and `text` behind it."""
        whole = "".join((*self._kept, text))
        self._kept.clear()
        return whole

    def _told(self, text: str) -> Iterator[Piece]:
        if self._is_behind_tag:
            text = text.lstrip()
        if text:
            self._is_behind_tag = False
            yield Reasoning(text) if self._inside is _Inside.THOUGHTS else Content(text)
