"""The files of a tokenizer beside each other: where they contradict, those win that win in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from aethermind.text import tokenizer_files
from aethermind.text.tokenizer import Tokenizer as Ours

TEXTS = ("Once upon", " Once</s>Upon ", "ONCE")


def byte_level() -> Tokenizer:
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    fast.train_from_iterator(["Once upon once"], trainer)
    fast.add_special_tokens(["</s>"])
    return fast


def word_piece() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "once", "upon", "Once", "Upon", "ONCE"]
    fast = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast.decoder = decoders.WordPiece()
    return fast


@pytest.mark.parametrize("large", [1 << 20, 0])
@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize(
    ("fast", "class_name", "flag"),
    [
        (byte_level(), "GPT2Tokenizer", "add_prefix_space"),
        (byte_level(), "PreTrainedTokenizerFast", "split_special_tokens"),
        (word_piece(), "BertTokenizer", "do_lower_case"),
    ],
    ids=["add_prefix_space", "split_special_tokens", "do_lower_case"],
)
def test_flags_count_as_in_transformers(
    fast: Any,
    class_name: str,
    flag: str,
    value: bool,
    large: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_files, "LARGE_FILE_BYTES", large)
    fast.save(str(tmp_path / "tokenizer.json"))
    roles = {"unk_token": "[UNK]"} if flag == "do_lower_case" else {"eos_token": "</s>", "unk_token": "</s>"}
    config = {"tokenizer_class": class_name, flag: value, **roles}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = getattr(transformers, class_name).from_pretrained(tmp_path), Ours.from_directory(tmp_path)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
