"""Vocabularies in tiktoken's format against a merge by ranks, step by step, as the library describes it."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from aethermind.errors import TokenizerError
from aethermind.text.bpe_vocabularies import read_tiktoken
from aethermind.text.split_patterns import GPT_4, GPT_4_SINGLE_DIGITS
from aethermind.text.tokenizer import Tokenizer

_WORDS = [
    "th",
    "he",
    "the",
    " t",
    " th",
    " the",
    "in",
    "ing",
    "er",
    "re",
    "an",
    " an",
    "and",
    " and",
    "12",
    "123",
    "\u00e9",
]
RANKS = {bytes([byte]): byte for byte in reversed(range(256))}
RANKS |= {word.encode(): 256 + i for i, word in enumerate(_WORDS)}
TEXTS = st.text(alphabet="thering and123\u00e9\n'", max_size=24)


def lines(ranks: dict[bytes, int]) -> bytes:
    return b"".join(b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ranks.items())


def directory(path: Path, name: str = "m.tiktoken", **config: Any) -> Path:
    (path / name).write_bytes(lines(RANKS))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def encoded(text: str, pattern: str) -> list[int]:
    """The pair of lowest rank is merged, the first of equals, until none is a token."""
    ids = []
    for piece in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while not (whole := piece.encode() in RANKS) or len(parts) > 1:
            if whole:
                parts = [piece.encode()]
                break
            ranked = [(RANKS[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in RANKS]
            if not ranked:
                break
            _, at = min(ranked)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [RANKS[part] for part in parts]
    return ids


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    path = tmp_path_factory.mktemp("model") / "m.tiktoken"
    path.write_bytes(lines(RANKS))
    return read_tiktoken(path, (), {})


@given(TEXTS)
def test_pairs_are_merged_by_rank(fast: FastTokenizer, text: str) -> None:
    assert fast.encode(text).ids == encoded(text, GPT_4)
    assert fast.decode(fast.encode(text).ids) == text


@pytest.mark.parametrize("name", ["m.tiktoken", "tiktoken.model", "tokenizer.model"])
def test_a_directory_with_special_tokens(tmp_path: Path, name: str) -> None:
    added = {"300": {"content": "<|end|>", "special": True}, "273": {"content": "<|start|>", "special": True}}
    tokenizer = Tokenizer.from_directory(
        directory(tmp_path, name, added_tokens_decoder=added, eos_token="<|end|>", chat_template="x")
    )
    text = "<|start|>the thing<|end|>"
    assert tokenizer.encode(text) == [273, *encoded("the thing", GPT_4), 300]
    assert tokenizer.decode(tokenizer.encode(text)) == "the thing"
    assert (tokenizer.eos_token_id, tokenizer.is_byte_level, tokenizer.chat_template) == (300, True, "x")


def test_the_class_says_how_text_is_split(tmp_path: Path) -> None:
    text = "the 1234"
    assert Tokenizer.from_directory(directory(tmp_path)).encode(text) == encoded(text, GPT_4)
    qwen = Tokenizer.from_directory(directory(tmp_path, tokenizer_class="QWenTokenizer"))
    assert qwen.encode(text) == encoded(text, GPT_4_SINGLE_DIGITS) != encoded(text, GPT_4)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines(RANKS) + b"dGhl\n", "line 274, is not a token"),
        (lines(RANKS) + b"??? 999\n", "line 274, is not a token"),
        (lines(RANKS) + b"dGhl 999\n", "line 274, has a token twice"),
        (lines(RANKS) + b"eHl6 3\n", "gives one rank to several tokens"),
        (lines({b"a": 0}), "lacks the byte 0"),
        (lines(RANKS)[:100], "line 12, is not a token"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "m.tiktoken").write_bytes(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_sentencepiece_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(TokenizerError, match=r"reading tokenizer\.model instead needs transformers"):
        Tokenizer.from_directory(tmp_path)
