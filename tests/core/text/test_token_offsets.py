"""Where tokens begin in their text, characters of several tokens and special tokens included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text import Tokenizer
from aethermind.text.detokenizer import TokenOffsets, prompt_offsets


@given(text=st.text(max_size=30) | st.sampled_from(["Köln 🦊 é", "从前有一只狐狸", "🦊🦊 x"]))
def test_a_token_begins_at_the_character_that_its_first_byte_is_of(byte_level: Tokenizer, text: str) -> None:
    token_ids = byte_level.encode(text)
    text = byte_level.decode(token_ids)
    offsets, begun = TokenOffsets(byte_level), b""
    for token_id in token_ids:
        place = len(begun.decode(errors="ignore"))
        assert offsets.push(token_id) == place
        begun += byte_level.token_bytes(token_id) or b""


@pytest.mark.parametrize("family", ["byte_fallback", "metaspace"])
def test_tokens_of_other_vocabularies_stand_where_they_say(
    make_fast: Callable[[str], tokenizers.Tokenizer], family: str
) -> None:
    tokenizer = Tokenizer(make_fast(family))
    token_ids = tokenizer.encode("a é a漢 éa" if family == "byte_fallback" else "a b ab a")
    text = tokenizer.decode(token_ids)
    offsets = TokenOffsets(tokenizer, 5)
    for index, token_id in enumerate(token_ids):
        token, place = tokenizer.token_text(token_id, is_first=index == 0), offsets.push(token_id) - 5
        assert text[place : place + len(token)] == token


def test_an_answer_s_first_token_begins_with_its_space(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    prompt, answer = tokenizer.encode("bc."), [tokenizer.token_to_id("▁a"), tokenizer.token_to_id("bc")]
    offsets = TokenOffsets(tokenizer, 3, before=prompt)
    assert [offsets.push(token_id) for token_id in answer] == [3, 5]  # "bc." + " a" + "bc"


def test_bytes_that_make_a_character_begin_with_it(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    token_ids = tokenizer.encode("a🦊b")
    places = [TokenOffsets(tokenizer).push(token_ids[0])]
    offsets = TokenOffsets(tokenizer)
    places = [offsets.push(token_id) for token_id in token_ids]
    assert tokenizer.decode(token_ids) == "a🦊b"
    assert places == [0, 1, 1, 1, 1, 2]


def test_special_tokens_count_where_the_text_has_them(byte_level: Tokenizer) -> None:
    text = "hi<|im_end|> é!"
    token_ids = byte_level.encode(text)
    assert prompt_offsets(byte_level, text, token_ids)[-1] == len(text) - 1
    bare = byte_level.decode(token_ids)
    assert prompt_offsets(byte_level, bare, token_ids)[-1] == len(bare) - 1
