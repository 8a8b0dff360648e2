"""Every field of tokenizer_config.json, on a byte-level tokenizer and on BERT's: it is used, or changes nothing."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

from aethermind.errors import TokenizerError
from aethermind.model.hf_files import read_text_limit
from aethermind.model.known_fields import TOKENIZER_FIELDS, Handling, check_fields
from aethermind.text.tokenizer import Tokenizer

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER: Mapping[str, Any] = {
    **dict.fromkeys(ROLES, "[MASK]"),
    "additional_special_tokens": ["<|new|>"],
    "extra_special_tokens": {"image_token": "<|new|>"},
    "added_tokens_decoder": {"257": {"content": "<|new|>", "special": True}},
    "chat_template": "{{ messages }}",
    "add_prefix_space": True,
    "do_lower_case": False,
    "strip_accents": False,
    "tokenize_chinese_chars": False,
    "split_special_tokens": True,
    "model_max_length": 5,
}
TEXTS = ("ab [MASK] <|new|>", "Àb", "a一b", "ab")


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = tokenizers.Tokenizer(models.BPE({char: token_id for token_id, char in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.add_special_tokens(["[MASK]"])
    return fast


def word_piece() -> tokenizers.Tokenizer:
    letters = string.ascii_lowercase + "AÀàB一"
    pieces = ["[UNK]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    fast = tokenizers.Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.add_special_tokens(["[MASK]"])
    return fast


def read_tokenizer(directory: Path, fast: tokenizers.Tokenizer, contents: Mapping[str, Any]) -> Any:
    """All that a tokenizer's configuration says here."""
    try:
        return read_all(directory, fast, contents)
    except TokenizerError as error:
        return str(error)


def read_all(directory: Path, fast: tokenizers.Tokenizer, contents: Mapping[str, Any]) -> Any:
    fast.save(str(directory / "tokenizer.json"))
    (directory / "modules.json").write_text("[]")
    (directory / "tokenizer_config.json").write_text(json.dumps(contents))
    one = Tokenizer.from_directory(directory)
    encoded = [one.encode(text, add_special_tokens=True) for text in TEXTS]
    decoded = [one.decode(token_ids) for token_ids in encoded]
    limit = read_text_limit(directory)
    return encoded, decoded, dict(one.special_tokens), one.end_token_ids, dict(one.chat_templates), limit


@pytest.mark.parametrize("name", [name for name, field in TOKENIZER_FIELDS.items() if field.handling is Handling.USED])
def test_used_fields_of_tokenizers_change_them(tmp_path: Path, name: str) -> None:
    if name == "tokenizer_class":  # which counts beside another field only: tests/core/text/test_tokenizer_files.py
        return
    read = [
        (read_tokenizer(tmp_path, make(), {}), read_tokenizer(tmp_path, make(), {name: TOKENIZER[name]}))
        for make in (byte_level, word_piece)
    ]
    assert any(plain != changed for plain, changed in read)


@pytest.mark.parametrize(
    "name", [name for name, field in TOKENIZER_FIELDS.items() if field.handling is Handling.IGNORED]
)
def test_ignored_fields_of_tokenizers_change_nothing(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for make in (byte_level, word_piece):
        plain = read_tokenizer(tmp_path, make(), {})
        for value in (3, True, False, ["strange"]):
            assert read_tokenizer(tmp_path, make(), {name: value}) == plain
            check_fields(Path("m"), {"tokenizer_config.json": {name: value}}, object())
    assert caplog.text == ""


@pytest.mark.parametrize("flag", ["strip_accents", "tokenize_chinese_chars", "do_lower_case"])
@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("is_lower", [False, True])
def test_berts_normaliser_is_transformers_own(tmp_path: Path, flag: str, value: bool, is_lower: bool) -> None:
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": is_lower, "unk_token": "[UNK]", flag: value}
    fast = word_piece()
    fast.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    ids = [fast.token_to_id(token) for token in ("[SEP]", "[CLS]")]
    fast.post_processor = processors.BertProcessing(("[SEP]", ids[0]), ("[CLS]", ids[1]))
    read_tokenizer(tmp_path, fast, config)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
