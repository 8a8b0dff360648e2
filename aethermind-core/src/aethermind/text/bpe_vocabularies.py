"""BPE vocabularies in the formats of tiktoken and SentencePiece, as tokenizers of the `tokenizers` library.

SentencePiece's BPE (Kudo and Richardson 2018) merges the neighbours whose concatenation is the piece of the highest
score; the library takes pairs in the order of merging. Both are equivalent unless two pairs of equal score compete for
a character.

A file of tiktoken has a line for each token: its bytes in base64, and its rank, which is its id. Such files are
`*.tiktoken` (Qwen), `tiktoken.model` (Kimi), and `tokenizer.model` of Llama 3 and GLM-4. They say neither how text is
split before it is merged nor which tokens are special: the split rule follows from `tokenizer_class` in
tokenizer_config.json, the special tokens are in its `added_tokens_decoder`. Two neighbouring tokens are merged if their
bytes together are a token, the one with the lowest rank first; a piece of text that is a token is not merged. As a list
of merges, these are all ways to divide a token into two tokens, in the order of ranks.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.errors import TokenizerError
from aethermind.text.mapped_bpe import BYTE_OF_CHAR
from aethermind.text.special_tokens import DeclaredToken, add_missing_tokens
from aethermind.text.split_patterns import GGUF_SPLITS

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = [
    "find_tiktoken",
    "read_tiktoken",
    "sentencepiece_bpe",
    "without_first_space",
]

_SPACE = "▁"


def sentencepiece_bpe(
    vocabulary: Mapping[str, int], scores: Mapping[str, float], unknown: str | None, *, adds_space: bool
) -> FastTokenizer:
    """Return the tokenizer of a SentencePiece vocabulary; `scores` has the pieces to which text is merged.

    Characters that are not pieces become `<0x..>` for each of their bytes where the vocabulary has these, else
    `unknown`. With `adds_space`, encoding prepends a space and decoding strips it.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = sorted(
        _merge_candidates(scores), key=lambda pair: (-scores["".join(pair)], *(vocabulary[part] for part in pair))
    )
    fast = Tokenizer(models.BPE(dict(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if adds_space else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return fast


def without_first_space(fast: FastTokenizer) -> FastTokenizer:
    """Return the tokenizer without the prepended space: encoding does not add it and decoding does not strip it."""
    from tokenizers import Tokenizer

    state = json.loads(fast.to_str())
    for name, steps_key in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        component = state[name] or {"type": "Sequence", steps_key: []}
        steps = component[steps_key] if component["type"] == "Sequence" else [component]
        remaining = [step for step in steps if step["type"] not in ("Prepend", "Strip")]
        for step in remaining:
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
        state[name] = {"type": "Sequence", steps_key: remaining} if remaining else None
    return Tokenizer.from_str(json.dumps(state))


def _merge_candidates(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of pieces whose concatenation is a piece."""
    for piece in scores:
        for middle in range(1, len(piece)):
            left, right = piece[:middle], piece[middle:]
            if left in scores and right in scores:
                yield left, right


_FILE_PATTERNS = ("*.tiktoken", "tiktoken.model", "tokenizer.model")
_SPLIT_RULES_BY_CLASS = {"QWenTokenizer": "qwen2", "TikTokenTokenizer": "kimi-k2", "ChatGLM4Tokenizer": "glm4"}
"""GGUF's names of the split rules of tokenizer classes. Other classes, such as Llama 3's, split as GPT-4 does."""
_DEFAULT_SPLIT = "llama-bpe"
_MAX_TOKEN_BYTES = 1024
_CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def find_tiktoken(directory: Path) -> Path | None:
    """Return the only tiktoken file of a model directory; None if there is none, or several."""
    found = [path for pattern in _FILE_PATTERNS for path in sorted(directory.glob(pattern)) if _is_tiktoken(path)]
    return found[0] if len(found) == 1 else None


def read_tiktoken(path: Path, declared: Sequence[DeclaredToken], config: Mapping[str, Any]) -> FastTokenizer:
    """Return the library's tokenizer, with the `declared` tokens of the tokenizer_config.json `config`.

    TokenizerError for a file that is not in tiktoken's format.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ranks = _read_ranks(path)
    rule = GGUF_SPLITS[_SPLIT_RULES_BY_CLASS.get(str(config.get("tokenizer_class")), _DEFAULT_SPLIT)]
    vocabulary = {_as_byte_characters(token): rank for token, rank in ranks.items()}
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
    """Return the token and its rank in a line; None if the line is not valid."""
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 9 or not line.isascii():
        return None
    try:
        token = b64decode(parts[0], validate=True)
    except ValueError:
        return None
    return (token, int(parts[1])) if 0 < len(token) <= _MAX_TOKEN_BYTES else None


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read the rank of each token; TokenizerError for an invalid line, or if a single byte is no token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        parsed = _parsed(line)
        if parsed is None or parsed[0] in ranks:
            problem = "is not a token in base64 and its rank" if parsed is None else "has a token twice"
            raise TokenizerError(f"{path}, line {number}, {problem}. Fetch the file again.")
        ranks[parsed[0]] = parsed[1]
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) != len(ranks):
        problem = f"lacks the byte {missing[0]}" if missing else "gives one rank to several tokens"
        raise TokenizerError(f"{path} {problem}. Fetch the file again.")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """All pairs of tokens that together are a token, in the order of the rank of the token, then of the pair's."""
    pairs = [
        (rank, ranks[token[:position]], ranks[token[position:]], token, position)
        for token, rank in ranks.items()
        for position in range(1, len(token))
        if token[:position] in ranks and token[position:] in ranks
    ]
    pairs.sort()
    return [
        (_as_byte_characters(token[:position]), _as_byte_characters(token[position:]))
        for _, _, _, token, position in pairs
    ]


def _as_byte_characters(token: bytes) -> str:
    """Write bytes as the characters that stand for them in byte-level vocabularies."""
    return "".join([_CHAR_OF_BYTE[byte] for byte in token])
