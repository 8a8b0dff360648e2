"""A model's tokenizer as metadata of a GGUF file, which is read back and compared before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.engine.quantize.gguf_model import MetadataEntry
from aethermind.errors import ConfigError, InvalidArgumentError, TokenizerError
from aethermind.text.chat_templates import DEFAULT_TEMPLATE
from aethermind.text.gguf_tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, gguf_tokenizer

if TYPE_CHECKING:
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["vocabulary_metadata"]

_TEXTS = (
    "Hello, World! It's 2024 -- they'll   have\tpaid 1,234,567.89 EUR.\n\n  Indented\r\nlines…",
    "naïve café façade: Ελληνικά, русский, 日本語のテキスト, 한국어, العربية, हिन्दी 🙂👩‍👩‍👧",
    "def area(radius):\n    return 3.14159 * radius ** 2  # CamelCase snake_case HTTPServer\n",
    "x=1;y=22;z=333;w=4444 ___ --- ''' \"\"\" <|no token|> [[]] {{}} e\u0301 ﬁ ½",
)
"""Texts in which the rules of known tokenizers differ."""
_ROLES = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_BYTE, _UNKNOWN = 6, 2
_PREFIX = "tokenizer.ggml."


def vocabulary_metadata(tokenizer: Tokenizer, family: GgufFamily, num_rows: int) -> Iterator[MetadataEntry]:
    """The keys of the tokenizer of a model with so many rows of embeddings.

    InvalidArgumentError for another one than byte-level BPE with a rule of the family, or SentencePiece's BPE.
    """
    from gguf import GGUFValueType as Type

    state = json.loads(tokenizer.as_json())
    model = state["model"]
    is_pieces = bool(model.get("byte_fallback"))
    if model.get("type") != "BPE" or not (tokenizer.is_byte_level or is_pieces):
        raise InvalidArgumentError(
            "The tokenizer of this model is neither byte-level BPE nor SentencePiece's BPE, which are written as GGUF. "
            "Take a .gguf file of the model in F16 or BF16, or choose a format of compressed-tensors."
        )
    ids = model["vocab"] | {added["content"]: added["id"] for added in state["added_tokens"]}
    tokens = [f"[PAD{token_id}]" for token_id in range(max(num_rows, 1 + max(ids.values())))]
    types = [UNUSED] * len(tokens)
    for token, token_id in ids.items():
        tokens[token_id], types[token_id] = token, _BYTE if is_pieces and token in _BYTES else NORMAL
    for added in state["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    special = {name: tokenizer.special_tokens.get(role) for name, role in _ROLES.items()}
    if is_pieces and model.get("unk_token") in ids:
        special["unknown"] = model["unk_token"]
        types[ids[model["unk_token"]]] = _UNKNOWN
    special_ids = {name: ids[token] for name, token in special.items() if token in ids}
    text = tokenizer.encode("a", add_special_tokens=True)
    around = {"bos": text[:1] == [special_ids.get("bos")], "eos": text[-1:] == [special_ids.get("eos")]}
    found: dict[str, Any] = {
        f"{_PREFIX}tokens": tokens,
        f"{_PREFIX}token_type": types,
        **{f"{_PREFIX}{name}_token_id": token_id for name, token_id in special_ids.items()},
        **{f"{_PREFIX}add_{name}_token": is_added for name, is_added in around.items()},
    }
    if is_pieces:
        found |= _with_pieces(found, _scores(tokens, pairs), tokenizer, family)
    else:
        found |= {f"{_PREFIX}model": "gpt2", f"{_PREFIX}merges": [" ".join(pair) for pair in pairs]}
        found[f"{_PREFIX}pre"] = _split_name(found, tokenizer, family)
    for name, template in tokenizer.chat_templates.items():
        found["tokenizer.chat_template" if name == DEFAULT_TEMPLATE else f"tokenizer.chat_template.{name}"] = template
    types_of_items = {str: Type.STRING, int: Type.INT32, float: Type.FLOAT32}
    for key, value in found.items():
        if isinstance(value, list):
            yield MetadataEntry(key, value, Type.ARRAY, types_of_items[type(value[0])] if value else Type.STRING)
        else:
            yield MetadataEntry(key, value, {str: Type.STRING, bool: Type.BOOL, int: Type.UINT32}[type(value)])


def _scores(tokens: list[str], pairs: list[tuple[str, ...]]) -> list[float]:
    """A score for each piece: minus the rank of the first pair that is merged to it."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks.get(token, 0)) for token in tokens]


def _with_pieces(
    metadata: Mapping[str, Any], scores: list[float], tokenizer: Tokenizer, family: GgufFamily
) -> dict[str, Any]:
    """The keys of SentencePiece's BPE with which a reader encodes texts as the tokenizer does."""
    for adds_space in (True, False):
        found = {
            f"{_PREFIX}model": "llama",
            f"{_PREFIX}pre": "default",
            f"{_PREFIX}scores": scores,
            f"{_PREFIX}add_space_prefix": adds_space,
        }
        if _encodes_alike({**metadata, **found}, tokenizer, family):
            return found
    raise InvalidArgumentError(
        "The pieces of this model's tokenizer are merged in an order that scores do not give. Choose a format of "
        "compressed-tensors."
    )


def _split_name(metadata: Mapping[str, Any], tokenizer: Tokenizer, family: GgufFamily) -> str:
    """The name of the rule by which a reader of these metadata encodes texts as the tokenizer does."""
    for name in family.splits:
        if _encodes_alike({**metadata, f"{_PREFIX}pre": name}, tokenizer, family):
            return name
    raise InvalidArgumentError(
        "The tokenizer of this model splits texts in another way than the files of its family. Choose a format of "
        "compressed-tensors."
    )


def _encodes_alike(metadata: Mapping[str, Any], tokenizer: Tokenizer, family: GgufFamily) -> bool:
    try:
        other = gguf_tokenizer(metadata, family.splits, Path("its GGUF file"), is_cached=False)
    except (TokenizerError, ConfigError):
        return False
    return all(
        other.encode(text, add_special_tokens=True) == tokenizer.encode(text, add_special_tokens=True)
        for text in _TEXTS
    )
