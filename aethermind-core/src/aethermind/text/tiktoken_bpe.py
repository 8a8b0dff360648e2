"""Tokenizers in tiktoken's files: a line for each token, its bytes in base64 and its rank, which is its id.

Files are `*.tiktoken` (Qwen), `tiktoken.model` (Kimi), and `tokenizer.model` of Llama 3 and GLM-4. They say neither how
text is split before it is merged nor which tokens are special: the former follows from `tokenizer_class` in
tokenizer_config.json, the latter are its `added_tokens_decoder`.

A pair of tokens is merged if their bytes together are a token, the one with the lowest rank first, and a piece of text
that is a token is not merged. As a list of merges: all ways to divide a token into two, by the ranks of the tokens.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.errors import TokenizerError
from aethermind.text.bpe_tables import BYTE_OF_CHAR
from aethermind.text.special_tokens import DeclaredToken, add_missing_tokens
from aethermind.text.split_patterns import GGUF_SPLITS

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["find_tiktoken", "read_tiktoken"]

_PATTERNS = ("*.tiktoken", "tiktoken.model", "tokenizer.model")
_SPLITS_OF_CLASSES = {"QWenTokenizer": "qwen2", "TikTokenTokenizer": "kimi-k2", "ChatGLM4Tokenizer": "glm4"}
"""The rules of tokenizer classes, by their names in GGUF files; others split as GPT-4 does, such as Llama 3's."""
_USUAL_SPLIT = "llama-bpe"
_MAX_TOKEN_BYTES = 1024
_CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def find_tiktoken(directory: Path) -> Path | None:
    """Find the only file of this kind in a model directory; None if there is none, or several."""
    found = [path for pattern in _PATTERNS for path in sorted(directory.glob(pattern)) if _is_tiktoken(path)]
    return found[0] if len(found) == 1 else None


def read_tiktoken(path: Path, declared: Sequence[DeclaredToken], config: Mapping[str, Any]) -> FastTokenizer:
    """Return the library's tokenizer, with the `declared` tokens of the tokenizer_config.json `config`.

    TokenizerError for a file that is not of this kind.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ranks = _read_ranks(path)
    rule = GGUF_SPLITS[_SPLITS_OF_CLASSES.get(str(config.get("tokenizer_class")), _USUAL_SPLIT)]
    vocabulary = {_as_text(token): rank for token, rank in ranks.items()}
    for token in declared:
        if token.token_id is not None and token.text not in vocabulary:
            vocabulary[token.text] = token.token_id
    try:
        fast = Tokenizer(models.BPE(vocabulary, _merges(ranks), ignore_merges=True))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is not a vocabulary ({' '.join(str(error).split())}). Fetch it again.") from error
    patterns = (rule.pattern,) if isinstance(rule.pattern, str) else rule.pattern
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    fast.decoder = decoders.ByteLevel()
    add_missing_tokens(fast, declared)
    return fast


def _is_tiktoken(path: Path) -> bool:
    """Whether a file begins with a line of base64 and a number; tokenizer.model may be SentencePiece's."""
    try:
        with path.open("rb") as file:
            line = file.readline(2 * _MAX_TOKEN_BYTES)
        return _parsed(line) is not None
    except OSError:
        return False


def _parsed(line: bytes) -> tuple[bytes, int] | None:
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 9 or not line.isascii():
        return None
    try:
        token = b64decode(parts[0], validate=True)
    except ValueError:
        return None
    return (token, int(parts[1])) if 0 < len(token) <= _MAX_TOKEN_BYTES else None


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        found = _parsed(line)
        if found is None or found[0] in ranks:
            problem = "is not a token in base64 and its rank" if found is None else "has a token twice"
            raise TokenizerError(f"{path}, line {number}, {problem}. Fetch the file again.")
        ranks[found[0]] = found[1]
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) != len(ranks):
        problem = f"lacks the byte {missing[0]}" if missing else "gives one rank to several tokens"
        raise TokenizerError(f"{path} {problem}. Fetch the file again.")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, in the order of its rank, and of those of the pair."""
    pairs = [
        (rank, ranks[token[:at]], ranks[token[at:]], token, at)
        for token, rank in ranks.items()
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    pairs.sort()
    return [(_as_text(token[:at]), _as_text(token[at:])) for _, _, _, token, at in pairs]


def _as_text(token: bytes) -> str:
    return "".join([_CHAR_OF_BYTE[byte] for byte in token])
