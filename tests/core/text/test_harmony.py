"""Harmony, the messages of gpt-oss, told apart however the text is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text import Detokenizer, Tokenizer
from aethermind.text.answer_format import AnswerFormat
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import AnswerPart, Content, Reasoning, ToolCall
from aethermind.text.harmony import HARMONY_TOKENS

HARMONY = AnswerFormat(is_harmony=True)
ROME = '{"city": "Rome"}'
THINKS = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"


def parse(pieces: Sequence[str], functions: Sequence[str] = ("weather",), **options: Any) -> list[AnswerPart]:
    """The parts of an answer, with adjacent texts of one kind joined."""
    parser = new_parser(HARMONY, functions=functions, **options)
    parts: list[AnswerPart] = []
    for part in [*(one for piece in pieces for one in parser.push(piece)), *parser.finish()]:
        if parts and not isinstance(part, ToolCall) and type(parts[-1]) is type(part):
            parts[-1] = type(part)(parts[-1].text + part.text)  # type: ignore[union-attr]
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ('{"a": 1}', [Content('{"a": 1}')]),
        ("to be or not", [Content("to be or not")]),
        ("  two spaces ", [Content("  two spaces ")]),
        (f"{THINKS}{NEXT}<|channel|>final<|message|>Yes.<|return|>", [Reasoning("Hm."), Content("Yes.")]),
        (f"{THINKS}{NEXT}<|channel|>final<|message|>Yes", [Reasoning("Hm."), Content("Yes")]),
        ("<|channel|>analysis<|message|>Hm <3 a<|b", [Reasoning("Hm <3 a<|b")]),
        (f"{THINKS}<|channel|>final<|message|> Yes. ", [Reasoning("Hm."), Content(" Yes. ")]),
        ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.", [Reasoning("Hm."), Content("Yes.")]),
        (
            f"{THINKS}{NEXT} to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{ROME}<|call|>",
            [Reasoning("Hm."), ToolCall(0, "weather", ROME)],
        ),
        (f" to=functions.weather<|channel|>commentary json<|message|>{ROME}", [ToolCall(0, "weather", ROME)]),
        (
            f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}<|call|>{NEXT}"
            "<|channel|>commentary to=functions.a.b<|message|><|call|>",
            [ToolCall(0, "weather", ROME), ToolCall(1, "a.b", "{}")],
        ),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}<|channel|>commentary to=functions.weather"
            f"<|message|>{ROME}<|call|>",
            [Content("I look."), ToolCall(0, "weather", ROME)],
        ),
        (f"{THINKS}{NEXT}{THINKS}", [Reasoning("Hm.\nHm.")]),
        ('<|channel|>commentary to=functions.weather<|message|>{"ci', [Content('{"ci')]),
        ("<|channel|>commentary to=browser.search<|message|>x<|call|>", [Content("x")]),
        (f"{THINKS}{NEXT}<|chan", [Reasoning("Hm.")]),
        (f"{THINKS}{NEXT}<|channel|>fin", [Reasoning("Hm.")]),
        (f"{THINKS}Yes.", [Reasoning("Hm."), Content("Yes.")]),
        ("<|message|>Yes.<|end|><|end|>", [Content("Yes.")]),
    ],
)
def test_the_parts_of_an_answer(text: str, expected: list[AnswerPart]) -> None:
    assert parse([text]) == expected
    assert parse(list(text)) == expected


def test_without_tools_calls_are_content() -> None:
    text = f"<|channel|>commentary to=functions.weather<|message|>{ROME}<|call|>"
    assert parse([text], functions=()) == [Content(ROME)]


def test_reasoning_that_the_prompt_opened() -> None:
    assert HARMONY.is_thinking("<|start|>assistant<|channel|>analysis<|message|>")
    assert not HARMONY.is_thinking("<|start|>assistant")
    text = f"Hm.<|end|>{NEXT}<|channel|>final<|message|>Yes."
    assert parse([text], is_thinking=True) == [Reasoning("Hm."), Content("Yes.")]


def _pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[begin:end] for begin, end in pairwise(places)]


WORDS = st.text('ab <>|{}"\n', max_size=6) | st.sampled_from(["to=functions.w", "assistant", "final", ROME])
CUTS = st.lists(st.integers(0, 150), max_size=12)


@given(st.lists(WORDS | st.sampled_from(HARMONY_TOKENS), max_size=14), CUTS)
def test_cuts_do_not_matter_and_control_tokens_never_show(words: list[str], cuts: list[int]) -> None:
    text = "".join(words)
    whole = parse([text])
    assert parse(_pieces(text, cuts)) == whole
    shown = "".join(part.arguments if isinstance(part, ToolCall) else part.text for part in whole)
    assert not any(token in shown for token in HARMONY_TOKENS)


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["analysis", "commentary", "final"]), st.text("ab <>/{}\n", min_size=1)), max_size=6
)


@given(MESSAGES, CUTS)
def test_nothing_of_a_message_is_lost(messages: list[tuple[str, str]], cuts: list[int]) -> None:
    text = NEXT.join(f"<|channel|>{channel}<|message|>{body}<|end|>" for channel, body in messages)
    parts = parse(_pieces(text, cuts))
    for kind, is_kind in ((Reasoning, True), (Content, False)):
        bodies = [body for channel, body in messages if (channel == "analysis") is is_kind]
        assert "".join(part.text for part in parts if isinstance(part, kind)).replace("\n", "") == "".join(
            bodies
        ).replace("\n", "")


def test_control_tokens_are_visible_where_the_parser_needs_them(
    make_fast: Callable[[str], tokenizers.Tokenizer],
) -> None:
    fast = make_fast("byte_level")
    fast.add_special_tokens([*HARMONY_TOKENS, "<|other|>"])
    tokenizer = Tokenizer(fast)
    format = HARMONY.for_tokens(tokenizer)
    assert format.control_tokens == HARMONY_TOKENS
    visible = [fast.token_to_id(token) for token in format.control_tokens]
    ids = tokenizer.encode(f"{THINKS}<|other|>{NEXT}<|channel|>final<|message|>Yes.")
    shown, hidden = (Detokenizer(tokenizer, visible_token_ids=ids_) for ids_ in (visible, ()))
    assert parse([*map(shown.push, ids), shown.flush()]) == [Reasoning("Hm."), Content("Yes.")]
    assert "<|" not in "".join(map(hidden.push, ids))
