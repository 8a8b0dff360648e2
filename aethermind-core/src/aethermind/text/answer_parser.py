"""Incremental parsing of a model's output text, its answer, into content, reasoning and tool calls.

Models mark reasoning and calls with tags (`<think>…</think>`, `<tool_call>{"name": …, "arguments": …}</tool_call>`), or
write a bare call. An `AnswerFormat` declares which; the parser is the same for all. Text that may be the beginning of a
tag is held back until more text decides, so the parts do not depend on how the text is split into deltas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from aethermind.text.answer_parts import AnswerPart, Content, PartParser, Reasoning, ToolCall
from aethermind.text.harmony import HARMONY_TOKENS, HarmonyParser, opens_reasoning
from aethermind.text.tool_call_json import TaggedCall, overlap, read_calls

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerFormat", "AnswerParser", "AnswerPart", "Content", "Reasoning", "ToolCall", "new_parser"]

_THINK_TAGS = ("<think>", "</think>")

_HARMONY_MARK = "<|channel|>analysis<|message|>"
"""Text in all chat templates of harmony."""

_BARE_CALL = re.compile(r'(?:\[\s*)?\{\s*"')
_BARE_CALL_PREFIX = re.compile(r"(?:\[\s*)?(?:\{\s*)?")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a family of models marks reasoning and tool calls; None and False where it does not.

    Reasoning and calls are between the two tags of a pair. The body of a call is a JSON object with `name` and
    `arguments`, or several. With `has_bare_calls`, an answer that consists of such JSON is calls without tags.
    """

    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    has_bare_calls: bool = False
    is_harmony: bool = False
    """Whether answers are messages in channels, as those of gpt-oss (see `text.harmony`)."""
    control_tokens: tuple[str, ...] = ()
    """The tags that are special tokens of the model. The parser needs them in the text; content never has them."""

    def for_tokens(self, tokenizer: Tokenizer) -> AnswerFormat:
        """Return the format of a model with this tokenizer.

        It has reasoning tags if the vocabulary has them, and is harmony if the chat template writes that.
        Models of any architecture can be trained to reason, such as DeepSeek's distillations to Qwen2 and Llama.
        """
        if self.is_harmony or any(_HARMONY_MARK in source for source in tokenizer.chat_templates.values()):
            return replace(self, is_harmony=True, control_tokens=_special_tokens(HARMONY_TOKENS, tokenizer))
        has_think_tags = all(tokenizer.token_to_id(tag) is not None for tag in _THINK_TAGS)
        return replace(self, reasoning=_THINK_TAGS) if self.reasoning is None and has_think_tags else self

    def is_thinking(self, prompt: str) -> bool:
        """Whether an answer begins with reasoning, because the prompt ends with the opening tag."""
        if self.is_harmony:
            return opens_reasoning(prompt)
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


def new_parser(format: AnswerFormat, *, is_thinking: bool = False, functions: Collection[str] = ()) -> PartParser:
    """Return a parser of one answer in this format; the arguments are those of `AnswerParser`."""
    if format.is_harmony:
        return HarmonyParser(is_thinking=is_thinking, functions=functions)
    return AnswerParser(format, is_thinking=is_thinking, functions=functions)


def _special_tokens(tags: Iterable[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the tags that are special tokens."""
    return tuple(tag for tag in tags if tokenizer.token_to_id(tag) in tokenizer.special_token_ids)


class _Section(Enum):
    """The section of the answer that the next character belongs to."""

    START = auto()
    """Not decided yet: so far there is only white space, and text that may be the beginning of a tag."""
    REASONING = auto()
    CONTENT = auto()
    TOOL_CALL = auto()
    BARE_TOOL_CALLS = auto()


class AnswerParser:
    """Parses the text of an answer incrementally. Mutable; one for each answer.

    Reasoning tags count at the beginning of an answer only; later they are content. Text between tool-call tags that is
    not a call becomes content, with its tags. White space next to tags is dropped, all other white space is kept.
    """

    def __init__(self, format: AnswerFormat, *, is_thinking: bool = False, functions: Collection[str] = ()) -> None:
        """Begin an answer. `is_thinking`: the prompt ends in a reasoning tag; `functions`: the names for bare calls."""
        self._reasoning = format.reasoning
        self._tool_call = format.tool_call
        self._bare_names = frozenset(functions if format.has_bare_calls else ())
        self._prompt_opened_reasoning = is_thinking and format.reasoning is not None
        self._section = _Section.START
        self._undecided = ""
        """Text that may be the beginning of a tag."""
        self._withheld: list[str] = []
        """Text that is held back for other reasons: white space that is dropped before a tag, and bare calls."""
        self._call: TaggedCall | None = None
        self._space_before_call = ""
        self._num_calls = 0
        self._is_after_tag = self._prompt_opened_reasoning
        """Whether nothing but white space came since a tag."""

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Add text; yield the parts that it completes."""
        self._undecided += text
        section = None
        while self._undecided and self._section is not section:  # the rest may belong to another section
            section = self._section
            if section is _Section.START:
                self._parse_start()
            elif section is _Section.REASONING:
                yield from self._parse_reasoning()
            elif section is _Section.CONTENT:
                yield from self._parse_content()
            elif section is _Section.TOOL_CALL:
                yield from self._parse_tool_call()
            else:
                self._withheld.append(self._undecided)
                self._undecided = ""

    def finish(self) -> Iterator[AnswerPart]:
        """End the text; yield what was held back. Tags that were not closed end here."""
        if self._call is not None:
            yield from self._unclosed_call(self._call)
            return
        rest = self._take_withheld(self._undecided)
        self._undecided = ""
        if self._section is _Section.BARE_TOOL_CALLS:
            calls = read_calls(rest)
            if calls and self._bare_names.issuperset(name for name, _ in calls):
                yield from self._tool_calls(calls)
                return
            self._section = _Section.CONTENT
        yield from self._emit_text(rest)

    def _parse_start(self) -> None:
        """Decide which section an answer, or the text after its reasoning, begins with."""
        stripped = self._undecided.lstrip()
        self._withheld.append(self._undecided[: len(self._undecided) - len(stripped)])
        self._undecided = stripped
        if not stripped:
            return
        opening = self._reasoning[0] if self._reasoning is not None else ""
        if opening and stripped.startswith(opening):
            self._take_withheld("")
            self._undecided = stripped[len(opening) :]
            self._enter(_Section.REASONING, is_after_tag=True)
        elif opening.startswith(stripped):
            return
        elif self._prompt_opened_reasoning:
            self._enter(_Section.REASONING)
        elif self._bare_names and _BARE_CALL.match(stripped):
            self._enter(_Section.BARE_TOOL_CALLS)
        elif not (self._bare_names and _BARE_CALL_PREFIX.fullmatch(stripped)):
            self._enter(_Section.CONTENT)

    def _enter(self, section: _Section, *, is_after_tag: bool = False) -> None:
        """Continue in another section."""
        self._prompt_opened_reasoning = False
        self._section = section
        if is_after_tag:
            self._is_after_tag = True

    def _parse_reasoning(self) -> Iterator[AnswerPart]:
        """Yield reasoning up to its closing tag."""
        assert self._reasoning is not None
        reasoning, found = self._text_before(self._reasoning[1])
        yield from self._emit_text(reasoning.rstrip() if found else reasoning)
        if found:
            self._enter(_Section.START, is_after_tag=True)

    def _parse_content(self) -> Iterator[AnswerPart]:
        """Yield content up to the opening tag of a call."""
        if self._tool_call is None:
            held, self._undecided = self._take_withheld(self._undecided), ""
            yield from self._emit_text(held)
            return
        text, found = self._text_before(self._tool_call[0])
        stripped = text.rstrip() if found else text
        follows_tag = self._is_after_tag and not stripped
        yield from self._emit_text(stripped)
        if found:
            self._space_before_call = "" if follows_tag else text[len(stripped) :]
            self._call = TaggedCall(self._tool_call[1])
            self._enter(_Section.TOOL_CALL)

    def _text_before(self, tag: str) -> tuple[str, bool]:
        """Return the text before `tag`, as far as it is certain, and whether the tag was found.

        Without the tag, white space at the end is held back.
        """
        before, found, rest = self._undecided.partition(tag)
        if found:
            self._undecided = rest
            return self._take_withheld(before), True
        end = len(self._undecided) - overlap(self._undecided, tag)
        certain, self._undecided = self._undecided[:end], self._undecided[end:]
        stripped = certain.rstrip()
        text = self._take_withheld(stripped) if stripped else ""
        if space := certain[len(stripped) :]:
            self._withheld.append(space)
        return text, False

    def _parse_tool_call(self) -> Iterator[AnswerPart]:
        """Collect the body of a call; yield its parts once the closing tag is found."""
        assert self._call is not None
        rest = self._call.push(self._undecided)
        self._undecided = rest or ""
        if rest is not None:
            yield from self._closed_call(self._call.body)

    def _closed_call(self, body: str) -> Iterator[AnswerPart]:
        """Yield the parts of a closed pair of tool-call tags: calls, or text."""
        assert self._tool_call is not None
        self._call = None
        self._enter(_Section.CONTENT)
        if calls := read_calls(body):
            yield from self._tool_calls(calls)
        else:
            self._is_after_tag = False
            yield Content(self._space_before_call + self._tool_call[0] + body + self._tool_call[1])

    def _unclosed_call(self, call: TaggedCall) -> Iterator[AnswerPart]:
        """Yield the parts of a call in which the text ended.

        If the text is not a call, the first closing tag in it ends the call, even inside of what seemed to be a string.
        """
        assert self._tool_call is not None
        opening, closing = self._tool_call
        text = call.body
        if calls := read_calls(text):
            yield from self._tool_calls(calls)
            return
        body, tag, rest = text.partition(closing)
        if not tag:
            yield Content(self._space_before_call + opening + text)
            return
        yield from self._closed_call(body)
        yield from self.push(rest)
        yield from self.finish()

    def _tool_calls(self, calls: list[tuple[str, str]]) -> Iterator[AnswerPart]:
        """Yield calls, given as names and arguments."""
        for name, arguments in calls:
            yield ToolCall(self._num_calls, name, arguments)
            self._num_calls += 1
        self._is_after_tag = True

    def _take_withheld(self, text: str) -> str:
        """Return the text in `_withheld` with `text` after it, and clear it."""
        joined = "".join((*self._withheld, text))
        self._withheld.clear()
        return joined

    def _emit_text(self, text: str) -> Iterator[AnswerPart]:
        """Yield text as reasoning or content, without white space directly after a tag; nothing for empty text."""
        if self._is_after_tag:
            text = text.lstrip()
        if text:
            self._is_after_tag = False
            yield Reasoning(text) if self._section is _Section.REASONING else Content(text)
