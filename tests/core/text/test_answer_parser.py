"""Thoughts, words and tool calls told apart, however the text is cut."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text.answer_parser import AnswerFormat, AnswerParser, Content, Reasoning, ToolCall

FORMAT = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))


def parse(pieces: list[str], format: AnswerFormat = FORMAT) -> list[Content | Reasoning | ToolCall]:
    """What comes out, texts of one kind joined."""
    parser = AnswerParser(format)
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
    ],
)
def test_what_comes_out(text: str, expected: list[object]) -> None:
    assert parse([text]) == expected
    assert parse(list(text)) == expected


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
    assert parse(pieces) == parse([text])


@given(st.text(alphabet=st.characters(exclude_characters="<")))
def test_text_without_tags_comes_out_as_it_is(text: str) -> None:
    assert parse([text]) == ([Content(text)] if text else [])
    assert parse(list(text)) == parse([text])
