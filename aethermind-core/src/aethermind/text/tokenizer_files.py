"""Reading the tokenizer of a model directory: vocabulary, special tokens and chat templates.

Directories without tokenizer.json are read from tiktoken's files, or by transformers, an extra that is imported when
needed. Code that comes with a model is never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.errors import TokenizerError, remedy
from aethermind.first_party import pip_install_command
from aethermind.text.bpe_vocabularies import without_first_space
from aethermind.text.chat_templates import read_chat_templates
from aethermind.text.special_tokens import (
    DeclaredToken,
    add_missing_tokens,
    declared_tokens,
    one_line,
    read_json_object,
    tokens_by_role,
    with_special_tokens_map,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

    from aethermind.text.mapped_bpe import MappedBpe

__all__ = ["MIN_CACHED_BYTES", "find_vocabulary_files", "read_tokenizer_files", "read_with_transformers"]

_ADDS_NO_PREFIX_SPACE = "adds_no_space"
_FLAGS = ("add_prefix_space", "do_lower_case", "split_special_tokens", "strip_accents", "tokenize_chinese_chars")
_BERT_NORMALIZER_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Flags of BERT's normaliser, and their names in the library."""
MIN_CACHED_BYTES = 1 << 20
"""A smaller tokenizer.json is not cached: reading it is as fast (see `text.tokenizer_cache`)."""


def read_tokenizer_files(directory: Path) -> tuple[FastTokenizer | MappedBpe, dict[str, str], dict[str, str]]:
    """Return the library's tokenizer or a `MappedBpe`, special tokens by role, and chat templates by name.

    TokenizerError where a file is missing, unreadable or inconsistent.
    """
    config = with_special_tokens_map(read_json_object(directory / "tokenizer_config.json"), directory)
    templates = read_chat_templates(config, directory)
    path = directory / "tokenizer.json"
    if path.is_file():
        fast = _read_vocabulary(path, declared_tokens(config, directory), _flags(config))
        return fast, tokens_by_role(config), templates
    from aethermind.text.bpe_vocabularies import find_tiktoken

    if (tiktoken_path := find_tiktoken(directory)) is not None:
        return (
            _read_tiktoken_file(tiktoken_path, declared_tokens(config, directory), config),
            tokens_by_role(config),
            templates,
        )
    if not find_vocabulary_files(directory):
        raise TokenizerError(
            f"{path} does not exist, nor do other files of a tokenizer. Put the model's tokenizer.json there, "
            "or pass another one as tokenizer."
        )
    fast, special_tokens = read_with_transformers(directory)
    return fast, {**special_tokens, **tokens_by_role(config)}, templates


def is_tokenizer_cached(directory: Path) -> bool:
    """Whether the tokenizer of a directory is mapped from tables in the cache."""
    from aethermind.text.tokenizer_cache import has_cached_tables

    config = with_special_tokens_map(read_json_object(directory / "tokenizer_config.json"), directory)
    declared, flags = declared_tokens(config, directory), _flags(config)
    return has_cached_tables(directory / "tokenizer.json", repr(declared), repr(flags))


def _read_vocabulary(
    path: Path, declared: Sequence[DeclaredToken], flags: Mapping[str, bool]
) -> FastTokenizer | MappedBpe:
    def read() -> FastTokenizer:
        from tokenizers import Tokenizer as FastTokenizer

        fast = FastTokenizer.from_file(str(path))
        add_missing_tokens(fast, declared)
        _set_flags(fast, flags)
        return without_first_space(fast) if flags.get(_ADDS_NO_PREFIX_SPACE) else fast

    try:
        if path.stat().st_size < MIN_CACHED_BYTES:
            return read()
        from aethermind.text.tokenizer_cache import open_tokenizer

        return open_tokenizer(path, read, repr(declared), repr(flags))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception for every kind of corrupt file
        raise TokenizerError(
            f"{path} ({path.stat().st_size} bytes) is not a readable tokenizer: {one_line(error)}. "
            + remedy(path, error)
        ) from error


def _read_tiktoken_file(
    path: Path, declared: Sequence[DeclaredToken], config: Mapping[str, Any]
) -> FastTokenizer | MappedBpe:
    """Read a vocabulary in tiktoken's format. Inferring merges from ranks takes seconds, so that tables are cached."""
    from aethermind.text.bpe_vocabularies import read_tiktoken
    from aethermind.text.tokenizer_cache import open_tokenizer

    def read() -> FastTokenizer:
        return read_tiktoken(path, declared, config)

    if path.stat().st_size < MIN_CACHED_BYTES:
        return read()
    return open_tokenizer(path, read, repr(declared), str(config.get("tokenizer_class")))


def _flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return the flags of tokenizer_config.json that change the tokenizer.

    `add_prefix_space` also applies to SentencePiece's spaces, but, as in transformers, only for Llama's class.
    """
    flags = {name: config[name] for name in _FLAGS if isinstance(config.get(name), bool)}
    is_llama = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    if is_llama and flags.get("add_prefix_space") is False:
        flags[_ADDS_NO_PREFIX_SPACE] = True
    return flags


def _set_flags(fast: FastTokenizer, flags: Mapping[str, bool]) -> None:
    """Apply the flags of BERT's normaliser and GPT-2's spaces, which override those of tokenizer.json."""
    normalizer, splitter = fast.normalizer, fast.pre_tokenizer
    if type(normalizer).__name__ == "BertNormalizer":
        for name, attribute in _BERT_NORMALIZER_FLAGS.items():
            if name in flags:
                setattr(normalizer, attribute, flags[name])
    if "add_prefix_space" in flags and type(splitter).__name__ == "ByteLevel":
        splitter.add_prefix_space = flags["add_prefix_space"]
    if flags.get("split_special_tokens"):
        fast.encode_special_tokens = True


_VOCABULARY_PATTERNS = ("vocab.json", "merges.txt", "vocab.txt", "*.model", "*.tiktoken")
_ADVICE = "put the model's tokenizer.json there"


def find_vocabulary_files(directory: Path) -> list[str]:
    """Return the names of the files from which transformers may make a tokenizer."""
    return sorted(path.name for pattern in _VOCABULARY_PATTERNS for path in directory.glob(pattern))


def read_with_transformers(directory: Path) -> tuple[FastTokenizer, dict[str, str]]:
    """Return the library's tokenizer of a model directory, and the texts of its special tokens by role.

    Raises:
        TokenizerError: transformers is not installed, cannot read the files, or has no fast tokenizer for them.
    """
    files = ", ".join(find_vocabulary_files(directory))
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise TokenizerError(
            f"{directory} has no tokenizer.json, and reading {files} instead needs transformers, which cannot be "
            f"imported ({error}). Run `{pip_install_command('aethermind-core[transformers]')}`, or {_ADVICE}."
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # errors of any class of transformers
        reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise TokenizerError(
            f"{directory} has no tokenizer.json, and transformers cannot read {files} instead ({reason}). "
            f"Check these files, or {_ADVICE}."
        ) from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise TokenizerError(
            f"{directory} has a tokenizer that runs in Python only ({type(tokenizer).__name__}). Find the model with "
            f"a fast tokenizer, and {_ADVICE}."
        )
    return fast, {role: text for role, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
