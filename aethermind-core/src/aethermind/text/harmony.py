"""Incremental parsing of harmony, the output format of gpt-oss, into content, reasoning and tool calls.

An answer is a sequence of messages between control tokens. Each has a channel, and possibly a recipient, on either side
of the channel:

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The channel `analysis` is reasoning, messages to a function are calls, all others are content. The prompt has written
the first `<|start|>assistant`. Source: https://github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from enum import Enum, auto

from aethermind.text.answer_parts import AnswerPart, Content, Reasoning, ToolCall
from aethermind.text.tool_call_json import as_arguments, overlap

__all__ = ["HARMONY_CALLS", "HARMONY_END_TOKENS", "HARMONY_TOKENS", "HarmonyParser", "opens_reasoning"]

HARMONY_END_TOKENS = ("<|return|>", "<|call|>")
"""The control tokens that end an answer."""

HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", *HARMONY_END_TOKENS)
"""The control tokens of the format."""

_MESSAGE = ("\n<|constrain|>json<|message|>JSON<|call|>", " json<|message|>JSON<|call|>", "<|message|>JSON<|call|>")
_CALLS = tuple(f"commentary to=functions.NAME{message}" for message in _MESSAGE)
_NO_CALLS = (
    "analysis<|message|>",
    "final<|message|>",
    "commentary<|message|>",
    "commentary json<|message|>",
    "analysis<|constrain|>json<|message|>",
    "final<|constrain|>json<|message|>",
    "commentary<|constrain|>json<|message|>",
)
HARMONY_CALLS = {
    "to=functions.": tuple(f"NAME<|channel|>commentary{message}" for message in _MESSAGE),
    "<|channel|>": (*_CALLS, *_NO_CALLS),
    "<|start|>": (
        *(f"assistant<|channel|>{message}" for message in (*_CALLS, *_NO_CALLS)),
        *(f"assistant to=functions.NAME<|channel|>commentary{message}" for message in _MESSAGE),
    ),
}
"""By what opens a header, how messages go on behind it, in the notation of `CallSyntax.written`. A recipient opens only
the first header of an answer: the prompt has written what precedes it.
"""

_ENDS = ("<|end|>", *HARMONY_END_TOKENS)
"""The control tokens that end a message."""

_TOKEN = re.compile("|".join(map(re.escape, HARMONY_TOKENS)))
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w*)")
_RECIPIENT_PREFIX = re.compile(r"\s*(?:t|to|to=[^\s<]*\s*)?")
"""Text before the first control token of an answer that belongs to a header."""

_FUNCTIONS = "functions."


class _Section(Enum):
    START = auto()
    """The beginning of a message: a header, or text without any, such as that of a constrained answer."""
    HEADER = auto()
    TEXT = auto()
    CALL = auto()


class HarmonyParser:
    """Parses the text of an answer with its control tokens, with the interface of `AnswerParser`. Mutable.

    Control tokens are never part of the content. Messages of one kind are joined by a line break. The arguments of a
    call that are not a JSON object become content.
    """

    def __init__(self, *, is_thinking: bool = False, functions: Collection[str] = ()) -> None:
        """Begin an answer. `is_thinking`: the prompt ends inside of reasoning.

        Without `functions` there are no calls.
        """
        self._has_functions = bool(functions)
        self._section = _Section.TEXT if is_thinking else _Section.START
        self._undecided = ""
        """Text that may be the beginning of a control token, or of a header."""
        self._pieces: list[str] = []
        """A header or the arguments of a call, so far."""
        self._kind: type[Content] | type[Reasoning] = Reasoning if is_thinking else Content
        self._kinds: set[type] = set()
        """The kinds of text so far."""
        self._is_at_begin = True
        self._function = ""
        self._num_calls = 0

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Add text; yield the parts that it completes."""
        text = self._undecided + text
        self._undecided = ""
        position = 0
        while token := _TOKEN.search(text, position):
            yield from self._text(text[position : token.start()])
            yield from self._control(token[0])
            position = token.end()
        num_undecided = max(overlap(text[position:], name) for name in HARMONY_TOKENS)
        end = len(text) - num_undecided
        if self._section is _Section.START and _RECIPIENT_PREFIX.fullmatch(text, position, end):
            self._undecided = text[position:]
            return
        self._undecided = text[end:]
        yield from self._text(text[position:end])

    def finish(self) -> Iterator[AnswerPart]:
        """End the text; yield what was held back. A header without a message is dropped."""
        rest, self._undecided = self._undecided, ""
        if self._section is _Section.START:
            self._section = _Section.TEXT
        yield from self._text(rest)
        yield from self._end_message()

    def _text(self, text: str) -> Iterator[AnswerPart]:
        """Take text between control tokens."""
        if self._section is _Section.START and not _RECIPIENT_PREFIX.fullmatch(text):
            self._section = _Section.TEXT
        if self._section is not _Section.TEXT:
            self._pieces.append(text)
        elif text:
            separator = "\n" if self._is_at_begin and self._kind in self._kinds else ""
            self._is_at_begin = False
            self._kinds.add(self._kind)
            yield self._kind(separator + text)

    def _control(self, token: str) -> Iterator[AnswerPart]:
        """Take a control token."""
        if self._section is _Section.START:
            if token in _ENDS:
                return
            self._section = _Section.HEADER
        if self._section is _Section.HEADER:
            if token == "<|message|>":
                self._begin_message("".join(self._pieces))
            elif token == "<|start|>":
                self._pieces.clear()
            else:
                self._pieces.append(token)
        elif token not in ("<|message|>", "<|constrain|>"):
            yield from self._end_message()
            self._begin_message("")
            self._section = _Section.START if token in _ENDS else _Section.HEADER
            if token == "<|channel|>":
                self._pieces.append(token)

    def _begin_message(self, header: str) -> None:
        """Begin the message of a header."""
        self._pieces.clear()
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._function = ""
        if recipient is not None and recipient[1].startswith(_FUNCTIONS) and self._has_functions:
            self._function = recipient[1].removeprefix(_FUNCTIONS)
        self._section = _Section.CALL if self._function else _Section.TEXT
        self._kind = Reasoning if channel is not None and channel[1] == "analysis" else Content
        self._is_at_begin = True

    def _end_message(self) -> Iterator[AnswerPart]:
        """Yield the call that the message is, if it is one."""
        body = "".join(self._pieces)
        self._pieces.clear()
        if self._section is not _Section.CALL:
            return
        arguments = as_arguments(body)
        if arguments is not None:
            yield ToolCall(self._num_calls, self._function, arguments)
            self._num_calls += 1
            return
        self._section, self._kind = _Section.TEXT, Content
        yield from self._text(body)


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends at the beginning of a message of reasoning."""
    return prompt.endswith("<|channel|>analysis<|message|>")
