"""A tokenizer from a GGUF file's metadata, equal to that of the model's tokenizer.json.

For byte-level BPE (`gpt2`), GGUF stores the vocabulary and the merges, and the name of the rule by which text is split
into pieces before merging; the model's package has the rule. For SentencePiece's BPE (`llama`) it stores pieces and
scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Any

from aethermind.errors import TokenizerError
from aethermind.text.bpe_vocabularies import sentencepiece_bpe
from aethermind.text.chat_templates import DEFAULT_TEMPLATE
from aethermind.text.split_patterns import SplitRule
from aethermind.text.tokenizer import Tokenizer

__all__ = ["CONTROL", "NORMAL", "SplitRule", "UNUSED", "USER_DEFINED", "gguf_tokenizer"]

MIN_CACHED_TOKENS = 1 << 15
"""Smaller vocabularies are not cached: reading them is as fast (see `text.tokenizer_cache`)."""

_KEY_PREFIX = "tokenizer.ggml."
_TEMPLATE_KEY = "tokenizer.chat_template"
NORMAL, _UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
_ROLE_OF_KEY = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}


def gguf_tokenizer(
    metadata: Mapping[str, Any], split_rules: Mapping[str, SplitRule], path: Path, *, is_cached: bool = True
) -> Tokenizer:
    """Build the tokenizer that `metadata` describes.

    Args:
        metadata: a GGUF file's values by key, arrays of numbers as NumPy's.
        split_rules: the rule for each name that `tokenizer.ggml.pre` may have.
        path: the file, for messages and for the cache of large vocabularies.
        is_cached: whether that cache is used; False for metadata that are not from a file.

    Raises:
        TokenizerError: a key is missing or wrong, or the tokenizer is of a kind that is not known.
    """
    kind = str(_required(metadata, "model", path))
    if kind not in ("gpt2", "llama"):
        raise TokenizerError(
            f"{path} has a tokenizer of the kind {kind!r}; byte-level BPE and SentencePiece's, which GGUF calls 'gpt2' "
            "and 'llama', are read. Pass the model's Hugging Face directory as tokenizer."
        )
    rule = _split_rule(metadata, split_rules, path) if kind == "gpt2" else None
    read = partial(_read_tokenizer, metadata, rule, path)
    tokens = metadata.get(_KEY_PREFIX + "tokens")
    num_tokens = len(tokens) if isinstance(tokens, Sized) else 0
    if num_tokens < MIN_CACHED_TOKENS or not is_cached:
        fast = read()
    else:
        from aethermind.text.tokenizer_cache import open_tokenizer

        fast = open_tokenizer(path, read, repr(rule))
    special_tokens = {
        role: fast.id_to_token(token_id) or _required_list(metadata, "tokens", str, path)[token_id]
        for name, role in _ROLE_OF_KEY.items()
        if (token_id := _token_id(metadata, f"{name}_token_id", num_tokens, path)) is not None
    }
    return Tokenizer(fast, special_tokens=special_tokens, chat_template=_chat_templates(metadata, path))


def is_tokenizer_cached(metadata: Mapping[str, Any], split_rules: Mapping[str, SplitRule], path: Path) -> bool:
    """Whether the tokenizer of a file is mapped from tables in the cache."""
    from aethermind.text.tokenizer_cache import has_cached_tables

    kind = str(_required(metadata, "model", path))
    return has_cached_tables(path, repr(_split_rule(metadata, split_rules, path) if kind == "gpt2" else None))


def _chat_templates(metadata: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return templates by name; the key of the default one has no suffix."""
    found = {}
    for key, value in metadata.items():
        if key == _TEMPLATE_KEY or key.startswith(_TEMPLATE_KEY + "."):
            if not isinstance(value, str):
                raise TokenizerError(f"{path} has a {key} that is not text. Convert the model again.")
            found[key[len(_TEMPLATE_KEY) + 1 :] or DEFAULT_TEMPLATE] = value
    return found


def _read_tokenizer(metadata: Mapping[str, Any], rule: SplitRule | None, path: Path) -> Any:
    """Return the library's tokenizer: byte-level BPE where there is a rule, else SentencePiece's."""
    tokens, types = (
        _required_list(metadata, name, type, path) for name, type in (("tokens", str), ("token_type", int))
    )
    if len(types) != len(tokens):
        raise TokenizerError(f"{path} has {len(tokens)} tokens but {len(types)} token types. Fetch the file again.")
    vocabulary = {token: i for i, (token, type) in enumerate(zip(tokens, types, strict=True)) if type != UNUSED}
    if rule is None:
        fast, adds_bos = _sentencepiece_tokenizer(metadata, vocabulary, types, path), True
    else:
        fast, adds_bos = (
            _byte_level_tokenizer(vocabulary, _required_list(metadata, "merges", str, path), rule, path),
            rule.adds_bos,
        )
    _add_tokens(fast, zip(tokens, types, strict=True))
    special_tokens_around: list[str | None] = []
    for name, default in (("bos", adds_bos), ("eos", False)):
        token_id = _token_id(metadata, f"{name}_token_id", len(tokens), path)
        is_added = metadata.get(f"{_KEY_PREFIX}add_{name}_token", default)
        special_tokens_around.append(tokens[token_id] if is_added and token_id is not None else None)
    try:
        _add_special_tokens_around(fast, *special_tokens_around)
    except Exception as error:  # the library raises bare Exception, for a name with a colon, say
        raise TokenizerError(
            f"{path} adds {special_tokens_around} to texts, which are not special tokens. Pass --tokenizer with the "
            "model's Hugging Face directory."
        ) from error
    return fast


def _split_rule(metadata: Mapping[str, Any], split_rules: Mapping[str, SplitRule], path: Path) -> SplitRule:
    """Return the rule that `tokenizer.ggml.pre` names; TokenizerError for an unknown name."""
    pre = str(_required(metadata, "pre", path))
    rule = split_rules.get(pre)
    if rule is None:
        raise TokenizerError(
            f"{path} splits text by the rule {pre!r:.80}, which is not known. Pass the model's Hugging Face directory "
            "as tokenizer."
        )
    return rule


def _sentencepiece_tokenizer(
    metadata: Mapping[str, Any], vocabulary: dict[str, int], types: list[int], path: Path
) -> Any:
    scores = _required_list(metadata, "scores", float, path)
    if len(scores) != len(types):
        raise TokenizerError(f"{path} has {len(types)} tokens but {len(scores)} scores. Fetch the file again.")
    mergeable = {token: scores[token_id] for token, token_id in vocabulary.items() if types[token_id] == NORMAL}
    unknown = next((token for token, token_id in vocabulary.items() if types[token_id] == _UNKNOWN), None)
    adds_space = bool(metadata.get(_KEY_PREFIX + "add_space_prefix", True))
    return sentencepiece_bpe(vocabulary, mergeable, unknown, adds_space=adds_space)


def _byte_level_tokenizer(vocabulary: dict[str, int], merges: Iterable[str], rule: SplitRule, path: Path) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        pairs = [_pair(merge) for merge in merges]
        model = models.BPE(vocabulary, pairs, ignore_merges=rule.ignore_merges)
    except Exception as error:  # the library raises bare Exception for merges of tokens that are not there
        reason = " ".join(str(error).split())
        raise TokenizerError(f"{path} has a vocabulary that is not one ({reason}). Fetch the file again.") from error
    fast = Tokenizer(model)
    if rule.is_nfc:
        fast.normalizer = normalizers.NFC()
    patterns = (rule.pattern,) if isinstance(rule.pattern, str) else rule.pattern
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    fast.decoder = decoders.ByteLevel()
    return fast


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _add_tokens(fast: Any, tokens_with_types: Iterable[tuple[str, int]]) -> None:
    """Add the tokens that are matched literally in a text; all but user-defined ones are special."""
    from tokenizers import AddedToken

    added = [
        AddedToken(token, special=type != USER_DEFINED, normalized=False)
        for token, type in tokens_with_types
        if type in (_UNKNOWN, CONTROL, USER_DEFINED)
    ]
    fast.add_tokens(added)


def _add_special_tokens_around(fast: Any, before: str | None, after: str | None) -> None:
    """Let the tokenizer add special tokens to texts: BOS before, and after them the EOS of some embedding models."""
    from tokenizers.processors import TemplateProcessing

    if added := {token for token in (before, after) if token is not None}:
        pieces = [piece for piece in (before, "$A", after) if piece is not None]
        ids = [(token, fast.token_to_id(token)) for token in sorted(added)]
        fast.post_processor = TemplateProcessing(single=pieces, special_tokens=ids)


def _required(metadata: Mapping[str, Any], name: str, path: Path) -> Any:
    """Return the value of a key of the tokenizer; TokenizerError if the file has none."""
    value = metadata.get(_KEY_PREFIX + name)
    if value is None:
        raise TokenizerError(
            f"{path} has no {_KEY_PREFIX}{name}, without which there is no tokenizer. Convert the model again with its "
            "own."
        )
    return value


def _required_list(metadata: Mapping[str, Any], name: str, kind: type[str | int | float], path: Path) -> list[Any]:
    """Return a list of values of one type; TokenizerError if the file has none."""
    value = _required(metadata, name, path)
    items = value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, Iterable) else None
    if items is None or isinstance(value, str) or not all(isinstance(item, kind) for item in items):
        raise TokenizerError(
            f"{path} has a {_KEY_PREFIX}{name} that is not a list of {kind.__name__}. Fetch the file again."
        )
    return items


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int, path: Path) -> int | None:
    """Return the id of a token; None if the file has none, TokenizerError if it is out of range."""
    value = metadata.get(_KEY_PREFIX + name)
    if value is not None and (not isinstance(value, int) or not 0 <= value < num_tokens):
        raise TokenizerError(f"{path} has {_KEY_PREFIX}{name} {value!r:.40}, which is none of its {num_tokens} tokens.")
    return value
