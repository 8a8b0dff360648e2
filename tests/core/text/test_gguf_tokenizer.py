"""A tokenizer out of a GGUF file's metadata is the one out of tokenizer.json."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, pre_tokenizers

from aethermind.errors import TokenizerError
from aethermind.text import Tokenizer, tokenizer_cache
from aethermind.text import gguf_tokenizer as gguf_module
from aethermind.text.gguf_tokenizer import SplitRule, gguf_tokenizer
from aethermind.text.mapped_bpe import MappedBpe

PATTERN = r"\p{N}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"
PATH = Path("model.gguf")


@pytest.fixture(scope="session")
def fast(make_fast: Callable[[str], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    fast = make_fast("byte_level")
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.add_tokens([AddedToken("<think>", normalized=False)])
    return fast


@pytest.fixture(scope="session")
def metadata(fast: tokenizers.Tokenizer, chatml: str) -> dict[str, Any]:
    state = json.loads(fast.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    ids = fast.get_vocab(with_added_tokens=True)
    tokens = [f"[PAD{i}]" for i in range(max(ids.values()) + 4)]
    types = [5] * len(tokens)
    for token, token_id in ids.items():
        tokens[token_id] = token
        types[token_id] = 1 if token_id not in added else 3 if added[token_id]["special"] else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "mine",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.bos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.chat_template": chatml,
    }


def read(metadata: dict[str, Any], **changed: Any) -> Tokenizer:
    content = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changed.items()}}
    content = {key: value for key, value in content.items() if value is not None}
    return gguf_tokenizer(content, {"mine": SplitRule(PATTERN, is_nfc=True)}, PATH)


@pytest.fixture(scope="session")
def pair(fast: tokenizers.Tokenizer, metadata: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    return Tokenizer(fast), read(metadata)


def test_everything_but_the_text_is_the_same(pair: tuple[Tokenizer, Tokenizer], chatml: str) -> None:
    theirs, ours = pair
    assert ours.vocab_size == theirs.vocab_size
    assert ours.special_token_ids == theirs.special_token_ids
    assert all(ours.id_to_token(i) == theirs.id_to_token(i) for i in range(theirs.vocab_size + 5))
    assert ours.special_tokens == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    assert ours.eos_token_id == theirs.token_to_id("<|im_end|>")
    assert ours.chat_template == chatml
    assert ours.is_byte_level


@given(
    text=st.text() | st.lists(st.sampled_from(["<|im_end|>", "<think>", "two words", " 12é", "e\u0301"])).map("".join)
)
def test_tokens_are_the_same(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    theirs, ours = pair
    token_ids = theirs.encode(text)
    assert ours.encode(text) == token_ids
    assert ours.decode(token_ids) == theirs.decode(token_ids)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_tables_of_it_are_kept(
    metadata: dict[str, Any], texts: tuple[str, ...], adds_bos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_module, "MIN_CACHED_TOKENS", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=lambda keep, *arguments: keep(*arguments)))
    monkeypatch.setattr(tokenizer_cache, "_pending", {})
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    content = {**metadata, "tokenizer.ggml.add_bos_token": adds_bos}
    first = gguf_tokenizer(content, {"mine": SplitRule(PATTERN)}, path)
    second = gguf_tokenizer(content, {"mine": SplitRule(PATTERN)}, path)
    other_rule = gguf_tokenizer(content, {"mine": SplitRule(r"\p{L}+")}, path)
    assert [isinstance(one._fast, MappedBpe) for one in (first, second, other_rule)] == [False, True, False]
    for text in (*texts, "<think>two words<|im_end|>"):
        token_ids = first.encode(text, add_special_tokens=True)
        assert second.encode(text, add_special_tokens=True) == token_ids
        assert second.decode(token_ids) == first.decode(token_ids)
    for face in ("vocab_size", "special_tokens", "special_token_ids", "eos_token_id", "chat_template", "is_byte_level"):
        assert getattr(second, face) == getattr(first, face)


def test_a_chat_template_is_text(metadata: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="chat_template that is not text"):
        read({**metadata, "tokenizer.chat_template": 7})


def test_without_nfc_text_stays_as_it_is(metadata: dict[str, Any]) -> None:
    tokenizer = gguf_tokenizer(metadata, {"mine": SplitRule(PATTERN)}, PATH)
    text = "e\u0301"
    assert tokenizer.decode(tokenizer.encode(text)) == text != unicodedata.normalize("NFC", text)


def test_a_first_token_is_added_where_the_file_asks_for_it(metadata: dict[str, Any]) -> None:
    bos = metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = read(metadata, add_bos_token=True)
    assert tokenizer.encode("Once") == read(metadata).encode("Once", add_special_tokens=True)
    assert tokenizer.encode("Once", add_special_tokens=True) == [bos, *tokenizer.encode("Once")]


def test_the_unknown_token_is_special(metadata: dict[str, Any]) -> None:
    """As transformers has it, and llama.cpp: found where it is written, and left out of answers."""
    token_id = metadata["tokenizer.ggml.tokens"].index("<think>")
    types = metadata["tokenizer.ggml.token_type"].copy()
    types[token_id] = 2
    tokenizer = read(metadata, token_type=types)
    assert tokenizer.encode("a<think>") == [*tokenizer.encode("a"), token_id]
    assert token_id in tokenizer.special_token_ids
    assert tokenizer.decode([token_id]) == ""
    assert read(metadata).decode([token_id]) == "<think>"


def test_templates_have_names(metadata: dict[str, Any], chatml: str) -> None:
    key = "tokenizer.chat_template"
    assert read({**metadata, f"{key}.tool_use": "T"}).chat_templates == {"default": chatml, "tool_use": "T"}
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template\.rag that is not text"):
        read({**metadata, f"{key}.rag": 3})


def test_a_last_token_is_added_where_the_file_asks_for_it(metadata: dict[str, Any]) -> None:
    bos, eos = (metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos"))
    word = read(metadata).encode("Once")
    assert read(metadata, add_eos_token=False).encode("Once", add_special_tokens=True) == word
    assert read(metadata, add_eos_token=True).encode("Once", add_special_tokens=True) == [*word, eos]
    both = read(metadata, add_eos_token=True, add_bos_token=True)
    assert both.encode("Once", add_special_tokens=True) == [bos, *word, eos]
    same = read(metadata, add_eos_token=True, add_bos_token=True, eos_token_id=bos)
    assert same.encode("Once", add_special_tokens=True) == [bos, *word, bos]
    unused = len(metadata["tokenizer.ggml.tokens"]) - 1
    with pytest.raises(TokenizerError, match="to texts, which are not special tokens"):
        read(metadata, add_eos_token=True, eos_token_id=unused)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": None}, r"no tokenizer\.ggml\.model"),
        ({"model": "t5"}, "kind 't5'.*gpt2"),
        ({"pre": None}, r"no tokenizer\.ggml\.pre"),
        ({"pre": "other"}, "rule 'other', which is not known.*as tokenizer"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"token_type": None}, r"no tokenizer\.ggml\.token_type"),
        ({"token_type": np.zeros(3, np.int32)}, "tokens but 3 token types"),
        ({"tokens": "abc"}, r"tokens that is not a list of str"),
        ({"tokens": np.arange(3)}, r"tokens that is not a list of str"),
        ({"token_type": 1}, r"token_type that is not a list of int"),
        ({"pre": np.arange(3)}, "which is not known"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["nope nothing"]}, "vocabulary that is not one"),
        ({"merges": ["single"]}, "vocabulary that is not one"),
        ({"eos_token_id": 10**6}, "eos_token_id 1000000, which is none of its"),
        ({"eos_token_id": "x"}, "eos_token_id 'x'"),
        ({"eos_token_id": -1}, "eos_token_id -1"),
    ],
)
def test_bad_metadata_is_one_sentence(metadata: dict[str, Any], changed: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerError, match=says) as caught:
        read(metadata, **changed)
    assert "\n" not in str(caught.value)
    assert str(PATH) in str(caught.value)
