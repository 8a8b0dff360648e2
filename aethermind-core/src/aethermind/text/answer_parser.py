"""Incremental parsing of a model's output text, its answer, into content, reasoning and tool calls.

Models mark reasoning and calls with tags (`<think>…</think>`, `<tool_call>{"name": …, "arguments": …}</tool_call>`), or
write a bare call. An `AnswerFormat` declares which; the parser is the same for all. Text that may be the beginning of a
tag is held back until more text decides, so the parts do not depend on how the text is split into deltas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, auto

from aethermind.text.answer_format import AnswerFormat, CallSyntax
from aethermind.text.answer_parts import AnswerPart, Content, PartParser, Reasoning, ToolCall
from aethermind.text.harmony import HarmonyParser
from aethermind.text.tool_call_json import TaggedCall, overlap, read_calls
from aethermind.text.tool_call_syntax import Calls, Functions, read_python

__all__ = ["AnswerParser", "AnswerPart", "Content", "Reasoning", "ToolCall", "new_parser"]

_BARE_CALL = re.compile(r'(?:\[\s*)?\{\s*"|\[\s*[\w.\-]+\s*\(')
_BARE_CALL_PREFIX = re.compile(r"(?:\[\s*)?(?:\{\s*)?|\[\s*[\w.\-]+\s*")


def new_parser(
    format: AnswerFormat, *, is_thinking: bool = False, functions: Functions | Collection[str] = ()
) -> PartParser:
    """Return a parser of one answer in this format; the arguments are those of `AnswerParser`."""
    if format.is_harmony:
        return HarmonyParser(is_thinking=is_thinking, functions=functions)
    return AnswerParser(format, is_thinking=is_thinking, functions=functions)


class _Tags:
    """Finds the first of several tags in a text."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(dict.fromkeys(tags))
        self._pattern = re.compile("|".join(map(re.escape, self._tags)))

    def __bool__(self) -> bool:
        return bool(self._tags)

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first tag."""
        return self._pattern.search(text)

    def overlap(self, text: str) -> int:
        """Return the length of the longest suffix of a text that may be the beginning of a tag."""
        return max(overlap(text, tag) for tag in self._tags)


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
    Control tokens of the model are never content: where they have no meaning as tags they are dropped.
    """

    def __init__(
        self, format: AnswerFormat, *, is_thinking: bool = False, functions: Functions | Collection[str] = ()
    ) -> None:
        """Begin an answer. `is_thinking`: the prompt ends in a reasoning tag.

        `functions` are the names that bare calls may have, with the schemas of parameters where they are known.
        """
        self._reasoning = format.reasoning
        self._syntaxes = {syntax.opening: syntax for syntax in format.tool_calls}
        self._functions = functions if isinstance(functions, Mapping) else dict.fromkeys(functions)
        self._bare_names = frozenset(self._functions if format.has_bare_calls else ())
        self._control_tokens = _Tags(format.control_tokens)
        self._content_tags = _Tags((*self._syntaxes, *format.control_tokens))
        closing = () if format.reasoning is None else format.reasoning[1:]
        self._reasoning_tags = _Tags((*closing, *format.control_tokens))
        self._prompt_opened_reasoning = is_thinking and format.reasoning is not None
        self._section = _Section.START
        self._undecided = ""
        """Text that may be the beginning of a tag."""
        self._withheld: list[str] = []
        """Text that is held back for other reasons: white space that is dropped before a tag, and bare calls."""
        self._call: tuple[CallSyntax, TaggedCall] | None = None
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
        if self._section is _Section.BARE_TOOL_CALLS:
            rest, self._undecided = self._take_withheld(self._undecided), ""
            calls = read_calls(rest) or read_python(rest, self._functions)
            if calls and self._bare_names.issuperset(name for name, _ in calls):
                yield from self._tool_calls(calls)
                return
            self._section = _Section.CONTENT
            yield from self.push(rest)
        while self._call is not None:
            yield from self._unclosed_call(*self._call)
        rest, self._undecided = self._take_withheld(self._undecided), ""
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
        """Yield reasoning up to its closing tag, or up to a control token that opens calls."""
        assert self._reasoning is not None
        while True:
            text, tag = self._text_before(self._reasoning_tags)
            is_end = tag == self._reasoning[1] or tag in self._syntaxes
            yield from self._emit_text(text.rstrip() if is_end else text)
            if tag == self._reasoning[1]:
                self._enter(_Section.START, is_after_tag=True)
            elif is_end:
                self._open_call(self._syntaxes[tag], "")
            if is_end or not tag:
                return

    def _parse_content(self) -> Iterator[AnswerPart]:
        """Yield content up to the opening tag of a call."""
        if not self._content_tags:
            held, self._undecided = self._take_withheld(self._undecided), ""
            yield from self._emit_text(held)
            return
        while True:
            text, tag = self._text_before(self._content_tags)
            is_call = tag in self._syntaxes
            stripped = text.rstrip() if is_call else text
            follows_tag = self._is_after_tag and not stripped
            yield from self._emit_text(stripped)
            if is_call:
                self._open_call(self._syntaxes[tag], "" if follows_tag else text[len(stripped) :])
            if is_call or not tag:
                return

    def _open_call(self, syntax: CallSyntax, space: str) -> None:
        """Continue after the opening tag of calls, which follows this white space."""
        self._space_before_call = space
        self._call = (syntax, TaggedCall(syntax.end, has_strings=None if syntax.closing else True))
        self._enter(_Section.TOOL_CALL)

    def _text_before(self, tags: _Tags) -> tuple[str, str]:
        """Return the text before the first of the tags, as far as it is certain, and the tag; empty if there is none.

        Without a tag, white space at the end is held back.
        """
        if found := tags.search(self._undecided):
            before, self._undecided = self._undecided[: found.start()], self._undecided[found.end() :]
            return self._take_withheld(before), found[0]
        end = len(self._undecided) - tags.overlap(self._undecided)
        certain, self._undecided = self._undecided[:end], self._undecided[end:]
        stripped = certain.rstrip()
        text = self._take_withheld(stripped) if stripped else ""
        if space := certain[len(stripped) :]:
            self._withheld.append(space)
        return text, ""

    def _parse_tool_call(self) -> Iterator[AnswerPart]:
        """Collect the body of a call; yield its parts once the closing tag is found."""
        assert self._call is not None
        syntax, call = self._call
        rest, self._undecided = call.push(self._undecided), ""
        if rest is not None:
            self._undecided = rest if syntax.closing else syntax.opening + rest
            yield from self._ended_call(syntax, call.body, syntax.closing)

    def _ended_call(self, syntax: CallSyntax, body: str, closing: str) -> Iterator[AnswerPart]:
        """Yield the parts of a body between tags: calls, or text. `closing` is the closing tag if there was one."""
        self._call = None
        self._enter(_Section.CONTENT)
        text = syntax.opening + body + closing
        if calls := syntax.read(text if syntax.repeats_opening else body, self._functions):
            yield from self._tool_calls(calls)
            return
        while token := self._control_tokens and self._control_tokens.search(text):
            text = text[: token.start()] + text[token.end() :]
        if text := self._space_before_call + text:
            self._is_after_tag = False
            yield Content(text)

    def _unclosed_call(self, syntax: CallSyntax, call: TaggedCall) -> Iterator[AnswerPart]:
        """Yield the parts of a call in which the text ended.

        If the text is not a call, the first closing tag in it ends the call, even inside of what seemed to be a string.
        """
        text = call.body
        body, tag, rest = text.partition(syntax.end)
        if not tag or syntax.read(text, self._functions):
            yield from self._ended_call(syntax, text, "")
            return
        yield from self._ended_call(syntax, body, syntax.closing)
        yield from self.push(rest if syntax.closing else tag + rest)

    def _tool_calls(self, calls: Calls) -> Iterator[AnswerPart]:
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
