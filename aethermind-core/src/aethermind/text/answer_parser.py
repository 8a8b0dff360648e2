"""Incremental parsing of a model's text into content, reasoning and tool calls.

Models mark reasoning and calls with tags (`<think>…</think>`, `<tool_call>{"name": …, "arguments": …}</tool_call>`), or
write a bare call. An `AnswerFormat` declares which; the parser is the same for all. Text that may be the beginning of a
tag is held back until more text decides, so the parts do not depend on how the text is split into deltas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from aethermind.text.tool_call_json import TaggedCall, overlap, read_calls

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerFormat", "AnswerParser", "Content", "Reasoning", "ToolCall"]

_THOUGHTS = ("<think>", "</think>")

_BARE_CALL = re.compile(r'(?:\[\s*)?\{\s*"')
_BARE_CALL_SO_FAR = re.compile(r"(?:\[\s*)?(?:\{\s*)?")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a family of models marks reasoning and tool calls; None and False where it does not.

    Reasoning and calls are between the two tags of a pair. The body of a call is a JSON object with `name` and
    `arguments`, or several. With `has_bare_calls`, an answer that consists of such JSON is calls without tags.
    """

    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    has_bare_calls: bool = False

    def for_tokens(self, tokenizer: Tokenizer) -> AnswerFormat:
        """Return the format of a model with this tokenizer, with reasoning tags if its vocabulary has them.

        Models of any architecture can be trained to reason, such as DeepSeek's distillations to Qwen2 and Llama.
        """
        is_trained = all(tokenizer.token_to_id(tag) is not None for tag in _THOUGHTS)
        return replace(self, reasoning=_THOUGHTS) if self.reasoning is None and is_trained else self

    def is_thinking(self, prompt: str) -> bool:
        """Whether an answer begins with reasoning, because the prompt ends with the opening tag."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Reasoning, which is not part of the answer."""

    text: str


class ToolCall(NamedTuple):
    """A function to call: its index among the answer's calls, its name, its arguments as JSON text."""

    place: int
    name: str
    arguments: str


AnswerPart = Content | Reasoning | ToolCall


class _Inside(Enum):
    """The part of the answer that the next character belongs to."""

    BEGINNING = auto()
    """Undecided: only white space and text that may be a tag so far."""
    THOUGHTS = auto()
    TEXT = auto()
    CALL = auto()
    BARE_CALLS = auto()


class AnswerParser:
    """Parses the text of an answer incrementally. Mutable; one for each answer.

    Reasoning tags count at the beginning of an answer only; later they are content. Text between tool-call tags that is
    not a call becomes content, with its tags. White space next to tags is dropped, all other is kept.
    """

    def __init__(self, format: AnswerFormat, *, is_thinking: bool = False, functions: Collection[str] = ()) -> None:
        """Begin an answer. `is_thinking`: the prompt opened reasoning; `functions`: those that bare calls may name."""
        self._reasoning = format.reasoning
        self._tool_call = format.tool_call
        self._bare_names = frozenset(functions if format.has_bare_calls else ())
        self._was_opened = is_thinking and format.reasoning is not None
        self._inside = _Inside.BEGINNING
        self._held = ""
        """Text that may be the beginning of a tag."""
        self._kept: list[str] = []
        """Text that is held back for other reasons: white space that a tag would drop, and bare calls."""
        self._call: TaggedCall | None = None
        self._space_before_call = ""
        self._num_calls = 0
        self._is_behind_tag = self._was_opened
        """Whether the next white space follows a tag."""

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Add text; yield the parts that it completes."""
        self._held += text
        before = None
        while self._held and self._inside is not before:  # the rest may belong to another part
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

    def finish(self) -> Iterator[AnswerPart]:
        """End the text; yield what was held back. Tags that were not closed end here."""
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
        yield from self._text_part(rest)

    def _begin(self) -> None:
        """Decide what an answer begins with, or what follows its reasoning."""
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

    def _think(self) -> Iterator[AnswerPart]:
        assert self._reasoning is not None
        thoughts, found = self._up_to(self._reasoning[1])
        yield from self._text_part(thoughts.rstrip() if found else thoughts)
        if found:
            self._go_into(_Inside.BEGINNING, is_behind_tag=True)

    def _say(self) -> Iterator[AnswerPart]:
        if self._tool_call is None:
            held, self._held = self._taken(self._held), ""
            yield from self._text_part(held)
            return
        text, found = self._up_to(self._tool_call[0])
        words = text.rstrip() if found else text
        is_right_behind = self._is_behind_tag and not words
        yield from self._text_part(words)
        if found:
            self._space_before_call = "" if is_right_behind else text[len(words) :]
            self._call = TaggedCall(self._tool_call[1])
            self._go_into(_Inside.CALL)

    def _up_to(self, tag: str) -> tuple[str, bool]:
        """Return the text before `tag`, as far as it is certain, and whether the tag was found.

        Without the tag, white space at the end is held back.
        """
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

    def _go_on_calling(self) -> Iterator[AnswerPart]:
        assert self._call is not None
        behind = self._call.push(self._held)
        self._held = behind or ""
        if behind is not None:
            yield from self._closed(self._call.body)

    def _closed(self, body: str) -> Iterator[AnswerPart]:
        """Yield the parts of a closed pair of tool-call tags: calls, or text."""
        assert self._tool_call is not None
        self._call = None
        self._go_into(_Inside.TEXT)
        if calls := read_calls(body):
            yield from self._called(calls)
        else:
            self._is_behind_tag = False
            yield Content(self._space_before_call + self._tool_call[0] + body + self._tool_call[1])

    def _unclosed(self, call: TaggedCall) -> Iterator[AnswerPart]:
        """Yield the parts of a call in which the text ended.

        If it is not a call, a closing tag inside of what seemed to be a string did close it.
        """
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

    def _called(self, calls: list[tuple[str, str]]) -> Iterator[AnswerPart]:
        for name, arguments in calls:
            yield ToolCall(self._num_calls, name, arguments)
            self._num_calls += 1
        self._is_behind_tag = True

    def _taken(self, text: str) -> str:
        """Return the text held back, and `text` behind it."""
        whole = "".join((*self._kept, text))
        self._kept.clear()
        return whole

    def _text_part(self, text: str) -> Iterator[AnswerPart]:
        if self._is_behind_tag:
            text = text.lstrip()
        if text:
            self._is_behind_tag = False
            yield Reasoning(text) if self._inside is _Inside.THOUGHTS else Content(text)
