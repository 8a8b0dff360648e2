"""Tokenizers whose files are not tokenizer.json: transformers reads them, and hands over what it made of them.

transformers is an extra, imported when such a directory is opened. Code that comes with a model is never run.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from aethermind.errors import TokenizerError
from aethermind.first_party import pip_install

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["find_vocabulary_files", "read_with_transformers"]

_PATTERNS = ("vocab.json", "merges.txt", "vocab.txt", "*.model", "*.tiktoken")
_INSTEAD = "put the model's tokenizer.json there"


def find_vocabulary_files(directory: Path) -> list[str]:
    """Names of the files in a directory from which transformers may make a tokenizer."""
    return sorted(path.name for pattern in _PATTERNS for path in directory.glob(pattern))


def read_with_transformers(directory: Path) -> tuple[FastTokenizer, dict[str, str]]:
    """The library's tokenizer of a model directory, and the texts of its special tokens by role.

    Raises:
        TokenizerError: transformers is not installed, cannot read the files, or has no fast tokenizer for them.
    """
    files = ", ".join(find_vocabulary_files(directory))
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise TokenizerError(
            f"{directory} has no tokenizer.json, and reading {files} instead needs transformers, which cannot be "
            f"imported ({error}). Run `{pip_install('aethermind-core[transformers]')}`, or {_INSTEAD}."
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever the class that the files name stumbles upon
        reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise TokenizerError(
            f"{directory} has no tokenizer.json, and transformers cannot read {files} instead ({reason}). "
            f"Check these files, or {_INSTEAD}."
        ) from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise TokenizerError(
            f"{directory} has a tokenizer that runs in Python only ({type(tokenizer).__name__}). Find the model with "
            f"a fast tokenizer, and {_INSTEAD}."
        )
    return fast, {role: text for role, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
