"""Small tokenizers of each family, trained or written out here: no test reads a model's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from aethermind.text import Tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TEXTS = (
    "Once upon a time, in a small village by the sea, there lived a fox who couldn't sleep.",
    "Es war einmal ein König; über den Dächern hörte man die Vögel.",
    "从前有一只狐狸，住在海边的小村庄里。",
    "昔々、あるところに、おじいさんとおばあさんが住んでいました。",
    "Жили-были дед да баба. नमस्ते दुनिया। שלום עולם",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 e\u0301 n\u0303 x = 3.14 * (y + 1)\n\n\tindented",
)


def make_byte_level() -> tokenizers.Tokenizer:
    """A byte-level BPE with ChatML's special tokens, and added tokens that are spelled unlike bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("two words"), AddedToken("Ġspelled"), AddedToken("日本\n")])
    return tokenizer


def make_byte_fallback() -> tokenizers.Tokenizer:
    """A vocabulary as SentencePiece writes it: `▁` for spaces, `<0x..>` for bytes that no piece covers."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abc.é漢\ufffd",
        "▁a",
        "bc",
    ]
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("b", "c")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def make_metaspace() -> tokenizers.Tokenizer:
    """A vocabulary of whole pieces, whose decoder drops the first space."""
    vocab = {piece: token_id for token_id, piece in enumerate(["▁", "a", "b", "▁a", "é", "\ufffd", "<unk>"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def make_word_piece() -> tokenizers.Tokenizer:
    """A vocabulary of words and `##` continuations, joined by spaces."""
    vocab = {piece: token_id for token_id, piece in enumerate(["[UNK]", "un", "##aff", "##able", "do", "n't", "."])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


FAMILIES = {
    "byte_level": make_byte_level,
    "byte_fallback": make_byte_fallback,
    "metaspace": make_metaspace,
    "word_piece": make_word_piece,
}


@pytest.fixture(scope="session")
def chatml() -> str:
    """The chat template of Qwen2."""
    return CHATML


@pytest.fixture(scope="session")
def texts() -> tuple[str, ...]:
    """Sentences in several scripts, on which the byte-level tokenizer is trained."""
    return TEXTS


@pytest.fixture(scope="session")
def make_fast() -> Callable[[str], tokenizers.Tokenizer]:
    """Make the library's tokenizer of a family: byte_level, byte_fallback, metaspace, word_piece."""
    return lambda family: FAMILIES[family]()


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(make_byte_level(), special_tokens={"eos_token": "<|im_end|>"}, chat_template=CHATML)


@pytest.fixture(scope="session")
def byte_level_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte-level tokenizer as a model directory; tests that change a file copy it first."""
    directory = tmp_path_factory.mktemp("byte_level")
    make_byte_level().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session", params=FAMILIES)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(FAMILIES[request.param]())
