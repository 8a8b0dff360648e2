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


def sentencepiece(scheme: str) -> Tokenizer:
    """As Llama's are saved: by a normaliser in older files, by a pre-tokenizer in newer ones."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abHelo", "▁a", "lo"]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [("▁", "a"), ("l", "o")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    fast = Tokenizer(model)
    if scheme == "prepend":
        fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return fast


@pytest.mark.parametrize("scheme", ["always", "first", "prepend"])
@pytest.mark.parametrize("class_name", ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("large", [1 << 20, 0])
def test_without_prefix_spaces_sentencepiece_tokenizers_are_transformers_own(
    scheme: str, class_name: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", large)
    sentencepiece(scheme).save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": class_name, "add_prefix_space": False}
    config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Ours.from_directory(tmp_path)
    for text in ("Hello a", "a lo", " a lo", "a</s>a"):
        token_ids = ours.encode(text)
        assert token_ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True)


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
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", large)
    fast.save(str(tmp_path / "tokenizer.json"))
    roles = {"unk_token": "[UNK]"} if flag == "do_lower_case" else {"eos_token": "</s>", "unk_token": "</s>"}
    config = {"tokenizer_class": class_name, flag: value, **roles}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = getattr(transformers, class_name).from_pretrained(tmp_path), Ours.from_directory(tmp_path)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
