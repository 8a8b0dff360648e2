"""SentencePiece's BPE out of a GGUF file, against its definition: merge the neighbours of the highest score."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, trainers

from aethermind.errors import TokenizerError
from aethermind.text import Detokenizer, Tokenizer
from aethermind.text.gguf_tokenizer import gguf_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL = ["<unk>", "<s>", "</s>"]


@pytest.fixture(scope="session")
def pieces(texts: tuple[str, ...]) -> list[str]:
    """Characters and what they were merged into, in the order in which that was learnt."""
    fast = tokenizers.Tokenizer(models.BPE())
    fast.train_from_iterator(
        [text.replace(" ", "▁") for text in texts], trainers.BpeTrainer(vocab_size=400, show_progress=False)
    )
    vocabulary = fast.get_vocab()
    return sorted(vocabulary, key=lambda piece: vocabulary[piece])


@pytest.fixture(scope="session")
def metadata(pieces: list[str]) -> dict[str, Any]:
    """As llama.cpp's converter writes it: the later a piece was learnt, the lower its score; bytes have none."""
    tokens = [*CONTROL, *BYTES, *pieces, "<user>", "[PAD]"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 5]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [0.0, -10000.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def read(metadata: dict[str, Any], **changed: Any) -> Tokenizer:
    content = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changed.items()}}
    return gguf_tokenizer({key: value for key, value in content.items() if value is not None}, {}, Path("model.gguf"))


@pytest.fixture(scope="session")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return read(metadata)


def merged(text: str, pieces: list[str]) -> list[str]:
    symbols, ranks = list(text), {piece: rank for rank, piece in enumerate(pieces)}
    while True:
        unions = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ranks]
        if not unions:
            return symbols
        _, first = min(unions)
        symbols[first : first + 2] = [symbols[first] + symbols[first + 1]]


@given(data=st.data())
def test_tokens_are_those_of_the_definition(
    tokenizer: Tokenizer, pieces: list[str], texts: tuple[str, ...], data: st.DataObject
) -> None:
    words = sorted({word for text in texts for word in text.split()})
    text = " ".join(data.draw(st.lists(st.sampled_from([*words, "\n", "漢é", "🦊", "  "]), max_size=12)))
    expected: list[int] = []
    for symbol in merged("▁" + text.replace(" ", "▁"), pieces) if text else []:
        parts = [symbol] if symbol in pieces else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        expected.extend(token_id for part in parts if (token_id := tokenizer.token_to_id(part)) is not None)
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, expected)) + detokenizer.flush() == text


def test_the_first_token_and_the_space_are_the_files_choice(metadata: dict[str, Any]) -> None:
    assert read(metadata).encode("a", add_special_tokens=True)[0] == 1
    assert read(metadata, add_bos_token=False).encode("a", add_special_tokens=True) == read(metadata).encode("a")
    bare = read(metadata, add_space_prefix=False)
    assert [bare.id_to_token(token_id) for token_id in bare.encode("a")] == ["a"]
    assert bare.decode(bare.encode(" a")) == " a"


def test_tokens_that_are_written_out(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokenizer.encode("<user></s>") == [tokens.index("<user>"), 2]
    assert tokenizer.token_to_id("[PAD]") is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"scores": None}, r"no tokenizer\.ggml\.scores"),
        ({"scores": np.zeros(3, np.float32)}, "tokens but 3 scores"),
        ({"scores": np.zeros(3, np.int32)}, "scores that is not a list of float"),
    ],
)
def test_bad_metadata_is_one_sentence(metadata: dict[str, Any], changed: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerError, match=says) as caught:
        read(metadata, **changed)
    assert "\n" not in str(caught.value)
