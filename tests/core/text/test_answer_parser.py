"""Thoughts, words and tool calls told apart, however the text is cut."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text.answer_format import HERMES_CALLS, AnswerFormat
from aethermind.text.answer_parser import AnswerParser
from aethermind.text.answer_parts import Content, Reasoning, ToolCall

FORMAT = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))


BARE = AnswerFormat(tool_calls=(HERMES_CALLS,), has_bare_calls=True)


def parse(pieces: list[str], format: AnswerFormat = FORMAT, **how: Any) -> list[Content | Reasoning | ToolCall]:
    """What comes out, texts of one kind joined."""
    parser = AnswerParser(format, **how)
    out: list[Content | Reasoning | ToolCall] = []
    for found in [*(one for piece in pieces for one in parser.push(piece)), *parser.finish()]:
        if out and not isinstance(found, ToolCall) and type(out[-1]) is type(found):
            out[-1] = type(found)(out[-1].text + found.text)  # type: ignore[union-attr]
        else:
            out.append(found)
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("plain words", [Content("plain words")]),
        ("a < b and <b>bold</b>", [Content("a < b and <b>bold</b>")]),
        ("<think>\nhm\n</think>\n\nYes.", [Reasoning("hm"), Content("Yes.")]),
        ("<think>\n\n</think>\n\nYes.", [Content("Yes.")]),
        ("<think>never closed", [Reasoning("never closed")]),
        (
            'Let me see.\n<tool_call>\n{"name": "now", "arguments": {"zone": "CET"}}\n</tool_call>',
            [Content("Let me see."), ToolCall(0, "now", '{"zone": "CET"}')],
        ),
        (
            '<tool_call>{"name": "a"}</tool_call>\n<tool_call>{"name": "b", "arguments": {"x": 1}}</tool_call>',
            [ToolCall(0, "a", "{}"), ToolCall(1, "b", '{"x": 1}')],
        ),
        ('<tool_call>{"name": "a"}', [ToolCall(0, "a", "{}")]),
        ("<tool_call>no JSON</tool_call>!", [Content("<tool_call>no JSON</tool_call>!")]),
        ("<tool_call>[1]</tool_call>", [Content("<tool_call>[1]</tool_call>")]),
        ("cut <tool_c", [Content("cut <tool_c")]),
        ("trailing space \n", [Content("trailing space \n")]),
        ("\n  leading space", [Content("\n  leading space")]),
        ("  yes ", [Content("  yes ")]),
        (" \n", [Content(" \n")]),
        (" \n<think> hm </think> \n Yes.\n", [Reasoning("hm"), Content("Yes.\n")]),
        (
            '<tool_call>{"name": "a", "arguments": {"x": "</tool_call> \\\\\\"</tool_call>"}}</tool_call>!',
            [ToolCall(0, "a", '{"x": "</tool_call> \\\\\\"</tool_call>"}'), Content("!")],
        ),
        (
            '<tool_call>5" wide </tool_call>\n<tool_call>{"name": "a"}</tool_call> x',
            [Content('<tool_call>5" wide </tool_call>'), ToolCall(0, "a", "{}"), Content("x")],
        ),
        (
            '<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>',
            [ToolCall(0, "a", "{}"), ToolCall(1, "b", "{}")],
        ),
        (
            "It writes <tool_call> and then </tool_call> around it.",
            [Content("It writes <tool_call> and then </tool_call> around it.")],
        ),
        ("Sure.\n<tool_call>\n{", [Content("Sure.\n<tool_call>\n{")]),
        ("Use the <think> tag and the </think> tag.", [Content("Use the <think> tag and the </think> tag.")]),
        ("a\n\n<think>b</think>\n\nc", [Content("a\n\n<think>b</think>\n\nc")]),
        ("<think>a</think>b <think>c</think>", [Reasoning("a"), Content("b <think>c</think>")]),
        ("a </think> b", [Content("a </think> b")]),
    ],
)
def test_what_comes_out(text: str, expected: list[object]) -> None:
    assert parse([text]) == expected
    assert parse(list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I ponder.\n</think>\n\nFour.", [Reasoning("I ponder."), Content("Four.")]),
        ("\nI ponder.", [Reasoning("I ponder.")]),
        ("<think>\nI ponder.\n</think>\n\nFour.", [Reasoning("I ponder."), Content("Four.")]),
        ('hm</think>\n<tool_call>{"name": "a"}</tool_call>', [Reasoning("hm"), ToolCall(0, "a", "{}")]),
        ("</think>\n\nFour.", [Content("Four.")]),
    ],
)
def test_thoughts_that_the_prompt_opened(text: str, expected: list[object]) -> None:
    assert FORMAT.is_thinking("<|im_start|>assistant\n<think>\n")
    assert parse([text], is_thinking=True) == expected
    assert parse(list(text), is_thinking=True) == expected


def test_a_prompt_that_opens_no_thoughts() -> None:
    assert not FORMAT.is_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not AnswerFormat().is_thinking("<think>\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "a", "parameters": {"x": 1}}', [ToolCall(0, "a", '{"x": 1}')]),
        (' [{"name": "a", "arguments": {}}, {"name": "b"}]', [ToolCall(0, "a", "{}"), ToolCall(1, "b", "{}")]),
        ('{"name": "a"}; {"name": "b"}', [ToolCall(0, "a", "{}"), ToolCall(1, "b", "{}")]),
        ('{"name": "Ada", "age": 36}', [Content('{"name": "Ada", "age": 36}')]),
        ('{"name": "a"} is a call.', [Content('{"name": "a"} is a call.')]),
        ('{"name": "a", ', [Content('{"name": "a", ')]),
        ("[1, 2]", [Content("[1, 2]")]),
        (" {", [Content(" {")]),
        ('Yes: {"name": "a"}', [Content('Yes: {"name": "a"}')]),
        ('<tool_call>{"name": "z"}</tool_call>', [ToolCall(0, "z", "{}")]),
    ],
)
def test_calls_without_tags(text: str, expected: list[object]) -> None:
    assert parse([text], BARE, functions=("a", "b")) == expected
    assert parse(list(text), BARE, functions=("a", "b")) == expected
    assert not any(isinstance(one, ToolCall) for one in parse([text.replace("<", "")], BARE))


def test_what_cannot_be_a_bare_call_is_told_as_it_comes() -> None:
    parser = AnswerParser(BARE, functions=("a",))
    assert list(parser.push("[")) == []
    assert list(parser.push("1, 2")) == [Content("[1, 2")]


def test_a_model_whose_tokens_are_tags_thinks_whatever_its_architecture() -> None:
    def tokenizer(*tokens: str) -> Any:
        ids = {token: place for place, token in enumerate(tokens)}
        return SimpleNamespace(token_to_id=ids.get, chat_templates={}, special_token_ids=frozenset())

    assert BARE.for_tokens(tokenizer("<think>", "</think>")).reasoning == ("<think>", "</think>")
    assert BARE.for_tokens(tokenizer("<think>")).reasoning is None
    own = AnswerFormat(reasoning=("[THINK]", "[/THINK]"))
    assert own.for_tokens(tokenizer("<think>", "</think>")) == own


def test_without_tags_everything_is_said_at_once() -> None:
    parser = AnswerParser(AnswerFormat())
    assert list(parser.push("<think> a ")) == [Content("<think> a ")]


def test_words_are_told_as_they_come() -> None:
    parser = AnswerParser(FORMAT)
    assert list(parser.push("Hello <")) == [Content("Hello")]
    assert list(parser.push("3 you")) == [Content(" <3 you")]


@pytest.mark.parametrize("piece", ["word and more <text> ", " \n  "])
def test_what_is_held_back_costs_no_more_the_more_it_is(piece: str) -> None:
    parser, seconds = AnswerParser(FORMAT), []
    list(parser.push('<tool_call>{"name": "a"' if "word" in piece else "Yes."))
    for _ in range(16):
        began = time.process_time()
        for _ in range(1000):
            assert not list(parser.push(piece))
        seconds.append(time.process_time() - began)
    assert min(seconds[-3:]) < 5 * min(seconds[:3])


WORDS = st.text('ab <>/{}"\n', max_size=8) | st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>"])
CALL = st.builds(lambda name: json.dumps({"name": name, "arguments": {"x": name}}), st.text(max_size=4))


@given(st.lists(WORDS | CALL, max_size=12), st.lists(st.integers(0, 100), max_size=12))
def test_cuts_do_not_matter(words: list[str], cuts: list[int]) -> None:
    text = "".join(words)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    for is_thinking in (False, True):
        assert parse(pieces, is_thinking=is_thinking) == parse([text], is_thinking=is_thinking)
    assert parse(pieces, BARE, functions=("a",)) == parse([text], BARE, functions=("a",))


@given(st.text(alphabet=st.characters(exclude_characters="<")))
def test_text_without_tags_comes_out_as_it_is(text: str) -> None:
    assert parse([text]) == ([Content(text)] if text else [])
    assert parse(list(text)) == parse([text])
