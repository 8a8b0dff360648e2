"""Tokens that files beside tokenizer.json name: found in texts, and shown to templates, as transformers does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from aethermind.errors import TokenizerError
from aethermind.text.tokenizer import Tokenizer

TEXTS = ("<|user|>Once<|end|> upon<note>a", " <|user|> x <note> y", "<|im_end|>fox<|endoftext|>", "plain")
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


@pytest.fixture
def write(make_fast: Callable[[str], tokenizers.Tokenizer], tmp_path: Path) -> Callable[..., tuple[Path, int]]:
    """Write a directory; returns it, and the first id that tokenizer.json has not."""

    def write(files: Callable[[int], dict[str, Any]]) -> tuple[Path, int]:
        fast = make_fast("byte_level")
        fast.add_tokens([AddedToken("<known>", special=True, normalized=False)])
        fast.save(str(tmp_path / "tokenizer.json"))
        size = fast.get_vocab_size()
        contents = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}, **files(size)}
        for name, content in contents.items():
            (tmp_path / name).write_text(json.dumps(content))
        return tmp_path, size

    return write


def decoder(size: int, *texts: str, **flags: bool) -> dict[str, Any]:
    return {
        str(size + i): {"content": text, **FLAGS, "special": text != "<note>"} | flags for i, text in enumerate(texts)
    }


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "added_tokens_decoder": lambda n: {
        "tokenizer_config.json": {"added_tokens_decoder": decoder(n, "<|user|>", "<|end|>", "<note>")}
    },
    "of_another_order": lambda n: {
        "tokenizer_config.json": {
            "added_tokens_decoder": dict(reversed(decoder(n, "<|user|>", "<|end|>", "<note>").items()))
        }
    },
    "flags": lambda n: {
        "tokenizer_config.json": {
            "added_tokens_decoder": decoder(n, "<|user|>", "<note>", lstrip=True, rstrip=True, normalized=True)
        }
    },
    "eos_in_the_decoder": lambda n: {
        "tokenizer_config.json": {
            "eos_token": "<|end|>",
            "added_tokens_decoder": decoder(n, "<|user|>", "<|end|>", special=False),
        }
    },
    "added_tokens_json": lambda n: {
        "tokenizer_config.json": {"eos_token": "<|end|>"},
        "added_tokens.json": {"<|end|>": n + 1, "<|user|>": n, "<note>": n + 2},
    },
    "special_tokens_map": lambda n: {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "special_tokens_map.json": {"eos_token": "<|im_end|>", "sep_token": {"content": "<known>", **FLAGS}},
    },
    "special_tokens_map_beside_a_decoder": lambda n: {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "added_tokens_decoder": {}},
        "special_tokens_map.json": {"eos_token": "<|im_end|>"},
    },
    "additional_special_tokens": lambda n: {
        "tokenizer_config.json": {
            "additional_special_tokens": [
                "<|user|>",
                {"__type": "AddedToken", "content": "<|end|>", **FLAGS, "special": True},
            ]
        }
    },
    "extra_special_tokens": lambda n: {"tokenizer_config.json": {"extra_special_tokens": ["<|user|>", "<known>"]}},
    "a_word_with_a_role": lambda n: {"tokenizer_config.json": {"eos_token": "on"}},
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_transformers(write: Callable[..., tuple[Path, int]], name: str) -> None:
    directory, _ = write(CASES[name])
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(directory), Tokenizer.from_directory(directory)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == theirs(text)["input_ids"]
        for skips in (False, True):
            assert ours.decode(ids, skip_special_tokens=skips) == theirs.decode(ids, skip_special_tokens=skips)
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.eos_token_id == theirs.eos_token_id


def test_templates_see_what_a_model_calls_a_token(write: Callable[..., tuple[Path, int]]) -> None:
    own = {"image_token": "<known>", "extra_special_tokens": {"sound_token": "<known>"}, "add_bos_token": False}
    directory, _ = write(lambda _: {"tokenizer_config.json": {**own, "pad_token": "[PAD]"}})
    ours = Tokenizer.from_directory(directory)
    assert ours.special_tokens == {"image_token": "<known>", "sound_token": "<known>", "pad_token": "[PAD]"}
    assert ours.token_to_id("[PAD]") is None, "a role alone makes no token"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            lambda n: {"tokenizer_config.json": {"added_tokens_decoder": decoder(n + 5, "<a>")}},
            r"'<a>' has the id .*would",
        ),
        (lambda n: {"added_tokens.json": {"<a>": n + 1}}, r"'<a>' has the id .* where it would be"),
        (lambda n: {"added_tokens.json": {"<a>": "x"}}, "where a token should be"),
        (lambda n: {"added_tokens.json": {"": n}}, "where a token should be"),
        (lambda n: {"added_tokens.json": [3]}, "holds a JSON list"),
        (lambda n: {"special_tokens_map.json": 3}, "holds a JSON int"),
        (lambda n: {"tokenizer_config.json": {"added_tokens_decoder": [1]}}, "where a token should be"),
        (lambda n: {"tokenizer_config.json": {"added_tokens_decoder": {"7": 3}}}, "where a token should be"),
        (
            lambda n: {"tokenizer_config.json": {"added_tokens_decoder": {"-1": {"content": "<a>"}}}},
            "a token should be",
        ),
        (lambda n: {"tokenizer_config.json": {"extra_special_tokens": "<a>"}}, "where a token should be"),
        (lambda n: {"tokenizer_config.json": {"extra_special_tokens": [3]}}, "where a token should be"),
        (lambda n: {"tokenizer_config.json": {"extra_special_tokens": 3}}, "where a token should be"),
    ],
)
def test_what_is_no_token_is_one_sentence(
    write: Callable[..., tuple[Path, int]], files: Callable[[int], dict[str, Any]], says: str
) -> None:
    directory, _ = write(files)
    with pytest.raises(TokenizerError, match=says) as caught:
        Tokenizer.from_directory(directory)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
