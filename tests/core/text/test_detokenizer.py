"""Deltas against decoding everything at once, for any tokens of every kind of vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from aethermind.text import Detokenizer, Tokenizer

_FAMILY = "👩‍👩‍👧‍👦"


def deltas(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@given(data=st.data(), skip_special_tokens=st.booleans())
def test_deltas_add_up_for_any_tokens(any_tokenizer: Tokenizer, data: st.DataObject, skip_special_tokens: bool) -> None:
    ids = st.integers(0, any_tokenizer.vocab_size + 1)  # unknown ids too: embeddings have padding rows
    token_ids = data.draw(st.lists(ids, max_size=40))
    expected = any_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    assert "".join(deltas(any_tokenizer, token_ids, skip_special_tokens)) == expected


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "metaspace", "word_piece"])
@given(data=st.data())
def test_behind_a_text_deltas_are_what_tokens_add_to_it(
    make_fast: Callable[[str], tokenizers.Tokenizer], family: str, data: st.DataObject
) -> None:
    tokenizer = Tokenizer(make_fast(family))
    token_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8)
    prompt, answer = data.draw(token_ids), data.draw(token_ids)
    if family == "byte_level":
        prompt = tokenizer.encode(tokenizer.decode(prompt).replace("\ufffd", ""))  # ends with a whole character
    elif prompt and tokenizer.byte_of(prompt[-1]) is not None:
        prompt.append(tokenizer.token_to_id("a") or 0)
    detokenizer = Detokenizer(tokenizer, before=prompt)
    text = "".join(map(detokenizer.push, answer)) + detokenizer.flush()
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, *answer])


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "a bc"),
        (["<s>"], "a bc"),
        (["<s>", "▁"], " a bc"),
        (["bc"], " a bc"),
        (["bc", "</s>"], " a bc"),
        (["bc", "<0xC3>", "<0xA9>"], " a bc"),
        (["bc", "<0xC3>"], " a bc"),
    ],
)
def test_only_the_first_space_of_all_text_goes(
    make_fast: Callable[[str], tokenizers.Tokenizer], prompt: list[str], text: str
) -> None:
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    before, answer = (list(map(tokenizer.token_to_id, tokens)) for tokens in (prompt, ["▁a", "▁", "bc"]))
    detokenizer = Detokenizer(tokenizer, before=before)
    assert "".join(map(detokenizer.push, answer)) + detokenizer.flush() == text


@given(text=st.text())
@example(text=_FAMILY + "e\u0301\u0323" + "🏳️‍🌈" + "क्षि" + "\U0010ffff\x00\ufffd")
def test_text_comes_back(byte_level: Tokenizer, text: str) -> None:
    token_ids = byte_level.encode(text)
    assert "".join(deltas(byte_level, token_ids)) == byte_level.decode(token_ids)


@example(pieces=[b"\xed\xa0\x80", b"\xf0\x90", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x82"])
@given(pieces=st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=3).map(str.encode))))
def test_any_bytes_one_at_a_time(byte_level: Tokenizer, pieces: list[bytes]) -> None:
    """Each byte its own token, so that every character is split wherever it can be, and many are broken."""
    token_of_byte = {byte_level.token_bytes(i): i for i in reversed(range(byte_level.vocab_size))}
    data = b"".join(pieces)
    token_ids = [token_of_byte[bytes([byte])] for byte in data]
    seen = b""
    detokenizer = Detokenizer(byte_level)
    text = ""
    for byte, token_id in zip(data, token_ids, strict=True):
        seen += bytes([byte])
        text += detokenizer.push(token_id)
        # At most three bytes wait, those that may be the beginning of a character; all that is whole is out.
        whole = seen.decode(errors="replace")
        assert whole.startswith(text)
        assert whole[len(text) :] in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)
    assert text + detokenizer.flush() == data.decode(errors="replace") == byte_level.decode(token_ids)


@given(text=st.text(min_size=1))
def test_a_text_that_ends_early_is_its_beginning(byte_level: Tokenizer, text: str) -> None:
    token_of_byte = {byte_level.token_bytes(i): i for i in reversed(range(byte_level.vocab_size))}
    token_ids = [token_of_byte[bytes([byte])] for byte in text.encode()]
    for num_tokens in range(len(token_ids)):
        detokenizer = Detokenizer(byte_level)
        beginning = "".join(map(detokenizer.push, token_ids[:num_tokens])) + detokenizer.finish()
        assert beginning == text.encode()[:num_tokens].decode(errors="ignore")


def test_every_script_comes_back(any_tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    token_ids = any_tokenizer.encode(" ".join(texts))
    assert "".join(deltas(any_tokenizer, token_ids)) == any_tokenizer.decode(token_ids)


def test_a_character_is_held_until_whole(byte_level: Tokenizer) -> None:
    bear = "🐻".encode()
    token_of_byte = {byte_level.token_bytes(i): i for i in reversed(range(byte_level.vocab_size))}
    token_ids = [token_of_byte[bytes([byte])] for byte in bear]
    assert deltas(byte_level, token_ids) == ["", "", "", "🐻", ""]
    assert deltas(byte_level, token_ids[:3]) == ["", "", "", "\ufffd"]


def test_a_byte_run_waits_for_its_end(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    e_acute = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "ß".encode()]
    a = tokenizer.token_to_id("a")
    assert deltas(tokenizer, [a, *e_acute, a]) == ["a", "", "", "ßa", ""]
    assert deltas(tokenizer, [a, *e_acute]) == ["a", "", "", "ß"]


def test_special_tokens_are_skipped_or_shown(byte_level: Tokenizer) -> None:
    token_ids = byte_level.encode("<|im_start|>hi<|im_end|>")
    assert "".join(deltas(byte_level, token_ids)) == "hi"
    assert "".join(deltas(byte_level, token_ids, skip_special_tokens=False)) == "<|im_start|>hi<|im_end|>"


def test_flush_begins_a_new_text(any_tokenizer: Tokenizer) -> None:
    token_ids = list(range(any_tokenizer.vocab_size))[-20:]
    detokenizer = Detokenizer(any_tokenizer)
    texts = ["".join(map(detokenizer.push, token_ids)) + detokenizer.flush() for _ in range(2)]
    assert texts == [any_tokenizer.decode(token_ids)] * 2


def test_window_does_not_grow(
    monkeypatch: pytest.MonkeyPatch, make_fast: Callable[[str], tokenizers.Tokenizer]
) -> None:
    """Special and unknown ids in any number leave the cost per token alone: nothing is decoded for them."""
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    decoded: list[int] = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **options: decoded.append(len(ids)) or decode(ids, **options))
    quiet = [tokenizer.token_to_id("<s>"), tokenizer.vocab_size + 7] * 200
    text = [tokenizer.token_to_id("▁a"), tokenizer.token_to_id("bc")] * 200
    deltas(tokenizer, [*quiet, *text])
    assert max(decoded) <= 3
