"""The files of a tokenizer in a model directory, read: its vocabulary, its special tokens and its chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.errors import TokenizerError
from aethermind.file_faults import remedy
from aethermind.text.chat_templates import read_chat_templates
from aethermind.text.json_file import flat, read_json_object
from aethermind.text.sentencepiece_bpe import without_first_space
from aethermind.text.special_tokens import (
    DeclaredToken,
    add_missing_tokens,
    declared_tokens,
    tokens_by_role,
    with_special_tokens_map,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

    from aethermind.text.mapped_bpe import MappedBpe

__all__ = ["LARGE_FILE_BYTES", "read_tokenizer_files"]

_ADDS_NO_SPACE = "adds_no_space"
_FLAGS = ("add_prefix_space", "do_lower_case", "split_special_tokens", "strip_accents", "tokenize_chinese_chars")
_OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Switches of BERT's normaliser, by what the library calls them."""
LARGE_FILE_BYTES = 1 << 20
"""A smaller tokenizer.json is read as fast as tables of it are found (see `text.kept_tables`)."""


def read_tokenizer_files(directory: Path) -> tuple[FastTokenizer | MappedBpe, dict[str, str], dict[str, str]]:
    """The library's tokenizer or what stands in for it, special tokens by role, and chat templates by name.

    TokenizerError says what is missing, unreadable or contradicts itself.
    """
    config = with_special_tokens_map(read_json_object(directory / "tokenizer_config.json"), directory)
    templates = read_chat_templates(config, directory)
    path = directory / "tokenizer.json"
    if path.is_file():
        fast = _read_vocabulary(path, declared_tokens(config, directory), _flags(config))
        return fast, tokens_by_role(config), templates
    from aethermind.text.transformers_tokenizer import find_vocabulary_files, read_with_transformers

    if not find_vocabulary_files(directory):
        raise TokenizerError(
            f"{path} does not exist, nor other files to make a tokenizer from. Put the model's tokenizer.json there, "
            "or pass another one as tokenizer."
        )
    fast, special_tokens = read_with_transformers(directory)
    return fast, {**special_tokens, **tokens_by_role(config)}, templates


def _read_vocabulary(
    path: Path, declared: Sequence[DeclaredToken], flags: Mapping[str, bool]
) -> FastTokenizer | MappedBpe:
    def read() -> FastTokenizer:
        from tokenizers import Tokenizer as FastTokenizer

        fast = FastTokenizer.from_file(str(path))
        add_missing_tokens(fast, declared)
        _set_flags(fast, flags)
        return without_first_space(fast) if flags.get(_ADDS_NO_SPACE) else fast

    try:
        if path.stat().st_size < LARGE_FILE_BYTES:
            return read()
        from aethermind.text.kept_tables import open_tokenizer

        return open_tokenizer(path, read, repr(declared), repr(flags))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception for every kind of corrupt file
        raise TokenizerError(
            f"{path} ({path.stat().st_size} bytes) is not a readable tokenizer: {flat(error)}. " + remedy(path, error)
        ) from error


def _flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """The switches of tokenizer_config.json that count. `add_prefix_space` is also about SentencePiece's spaces, but,
    as in transformers, only where the file names Llama's class.
    """
    flags = {name: config[name] for name in _FLAGS if isinstance(config.get(name), bool)}
    is_llama = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    if is_llama and flags.get("add_prefix_space") is False:
        flags[_ADDS_NO_SPACE] = True
    return flags


def _set_flags(fast: FastTokenizer, flags: Mapping[str, bool]) -> None:
    """What tokenizer_config.json says of BERT's normaliser and GPT-2's spaces counts, also where tokenizer.json says
    otherwise.
    """
    normalizer, splitter = fast.normalizer, fast.pre_tokenizer
    if type(normalizer).__name__ == "BertNormalizer":
        for name, attribute in _OF_BERT.items():
            if name in flags:
                setattr(normalizer, attribute, flags[name])
    if "add_prefix_space" in flags and type(splitter).__name__ == "ByteLevel":
        splitter.add_prefix_space = flags["add_prefix_space"]
    if flags.get("split_special_tokens"):
        fast.encode_special_tokens = True
