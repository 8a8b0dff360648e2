"""How families of models mark reasoning and tool calls: `AnswerFormat`, and the syntaxes of calls that are known.

A format is data. A family's package declares it; tags that a model's chat template or vocabulary has are added, because
models of one architecture are trained to write calls in different ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aethermind.plugins.compatibility import deprecated_fields
from aethermind.text.harmony import HARMONY_TOKENS, opens_reasoning
from aethermind.text.tool_call_syntax import ReadCalls, read_any, read_named, read_python, read_sections

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "AnswerFormat",
    "CallSyntax",
    "DEEPSEEK_CALLS",
    "HERMES_CALLS",
    "MISTRAL_CALLS",
    "PHI_CALLS",
    "PYTHON_TAG_CALLS",
    "XML_CALLS",
]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The tags around tool calls, and the reader of the text between them.

    Attributes:
        opening: the tag before the calls.
        closing: the tag behind them; empty if they end with the answer, or where the opening tag comes again.
        read: returns names and arguments, empty for a text that is not calls.
        inner: further tags, in the text between the two.
        repeats_opening: the opening tag is part of the text that is read.
        written: how calls are written between the tags, from which the constraint on calls is made; empty for none.
            NAME is the function's name, JSON its arguments, LIST a list of calls in JSON. XML and KEYS are its
            parameters as `<parameter=…>` or `<arg_key>` elements. A line break is white space or nothing.
    """

    opening: str
    closing: str
    read: ReadCalls
    inner: tuple[str, ...] = ()
    repeats_opening: bool = False
    written: tuple[str, ...] = ()
    is_list: bool = False
    """Whether several calls follow each other between the tags."""

    def as_in(self, templates: str) -> CallSyntax:
        """Return the syntax without the ways to write calls by elements that chat templates do not have."""
        is_there = {"XML": "<function=" in templates, "KEYS": "<arg_key>" in templates}
        written = (one for one in self.written if all(is_there[kind] for kind in is_there if kind in one))
        return replace(self, written=tuple(written))

    @property
    def end(self) -> str:
        """The tag at which the calls end."""
        return self.closing or self.opening


_JSON_CALL = '{"name": "NAME", "arguments": JSON}'

HERMES_CALLS = CallSyntax(
    "<tool_call>",
    "</tool_call>",
    read_any,
    written=(f"\n{_JSON_CALL}\n", "\n<function=NAME>\nXML</function>\n", "\nNAME\nKEYS"),
)
"""Hermes, Qwen (JSON), Qwen3-Coder and Qwen3.5 (XML), GLM-4.5 (keys and values), Granite 4."""

PHI_CALLS = CallSyntax("<|tool_call|>", "<|/tool_call|>", read_any, written=("\nLIST\n", f"\n{_JSON_CALL}\n"))
"""Phi-4-mini, and Granite 3, which does not write the closing tag."""

MISTRAL_CALLS = CallSyntax(
    "[TOOL_CALLS]", "", read_named, inner=("[ARGS]", "[CALL_ID]"), written=("\nLIST", "NAME[ARGS]JSON")
)
"""Mistral: a JSON list (tokenizers v3 and v7), or a tag for each call with the name before the arguments (v11)."""

PYTHON_TAG_CALLS = CallSyntax("<|python_tag|>", "", read_python)
"""Llama 3.1: JSON, or a call in Python's syntax."""

DEEPSEEK_CALLS = CallSyntax(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    read_sections,
    inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    written=(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nJSON\n```<｜tool▁call▁end｜>\n",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜>\n",
    ),
    is_list=True,
)
"""DeepSeek V3, R1 and V3.1, and the distillations of R1."""

LLAMA4_CALLS = CallSyntax("<|python_start|>", "<|python_end|>", read_python)
"""Llama 4: calls in Python's syntax."""

XML_CALLS = CallSyntax("<function=", "</function>", read_any, repeats_opening=True, written=("NAME>\nXML",))
"""Qwen3-Coder forgets the tag `<tool_call>` before a function."""

_KNOWN_CALLS = (HERMES_CALLS, PHI_CALLS, MISTRAL_CALLS, PYTHON_TAG_CALLS, DEEPSEEK_CALLS, LLAMA4_CALLS, XML_CALLS)

_REASONING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))

_HARMONY_MARK = "<|channel|>analysis<|message|>"
"""Text in all chat templates of harmony."""


@deprecated_fields(until="0.4", tool_call="tool_calls")
@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a family of models marks reasoning and tool calls; None, empty and False where it does not.

    Reasoning is between the two tags of a pair. `tool_calls` may be such a pair, around calls of any known syntax. With
    `has_bare_calls`, an answer that consists of calls, in JSON or Python's syntax, is calls without tags.
    """

    reasoning: tuple[str, str] | None = None
    tool_calls: tuple[CallSyntax, ...] = ()
    has_bare_calls: bool = False
    is_harmony: bool = False
    """Whether answers are messages in channels, as those of gpt-oss (see `text.harmony`)."""
    control_tokens: tuple[str, ...] = ()
    """The tags that are special tokens of the model. The parser needs them in the text; content never has them."""

    def __post_init__(self) -> None:
        if len(self.tool_calls) == 2 and all(isinstance(tag, str) for tag in self.tool_calls):
            opening, closing = map(str, self.tool_calls)
            object.__setattr__(self, "tool_calls", (CallSyntax(opening, closing, read_any),))

    def for_tokens(self, tokenizer: Tokenizer) -> AnswerFormat:
        """Return the format of a model with this tokenizer.

        It has reasoning tags if the vocabulary has them, the calls that the chat template writes, and is harmony if the
        template writes that. Models of any architecture can be trained to do so, such as DeepSeek's distillations to
        Qwen2 and Llama.
        """
        templates = "\n".join(tokenizer.chat_templates.values())
        if self.is_harmony or _HARMONY_MARK in templates:
            return replace(self, is_harmony=True, control_tokens=_special_tokens(HARMONY_TOKENS, tokenizer))
        found = (tags for tags in _REASONING_TAGS if all(tokenizer.token_to_id(tag) is not None for tag in tags))
        reasoning = self.reasoning or next(found, None)
        openings = {syntax.opening for syntax in self.tool_calls}
        added = (one for one in _KNOWN_CALLS if one.opening in templates and one.opening not in openings)
        tool_calls = tuple(one.as_in(templates) for one in (*self.tool_calls, *added))
        tags = [tag for one in tool_calls for tag in (one.opening, one.closing, *one.inner)]
        control_tokens = _special_tokens((*(reasoning or ()), *tags), tokenizer)
        return replace(self, reasoning=reasoning, tool_calls=tool_calls, control_tokens=control_tokens)

    def is_thinking(self, prompt: str) -> bool:
        """Whether an answer begins with reasoning, because the prompt ends with the opening tag."""
        if self.is_harmony:
            return opens_reasoning(prompt)
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


def _special_tokens(tags: Iterable[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the tags that are special tokens."""
    return tuple(tag for tag in dict.fromkeys(tags) if tokenizer.token_to_id(tag) in tokenizer.special_token_ids)
