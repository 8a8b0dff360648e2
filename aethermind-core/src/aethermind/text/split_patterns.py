"""Regular expressions by which several families of models split text into pieces before merging, for `SplitRule`.

Sources: the tokenizers of GPT-2, GPT-4 (`cl100k_base`) and GPT-4o (`o200k_base`), and of the families that are named.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DIGITS_THEN_GPT_2",
    "GPT_2",
    "GPT_4",
    "GPT_4O",
    "GPT_4_SINGLE_DIGITS",
    "LOWER",
    "SplitRule",
    "TEKKEN",
    "UPPER",
]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is split into the pieces that are merged: a regular expression, after NFC normalisation if `is_nfc`.

    Several expressions are applied one after the other, each to the pieces that the one before it made. With
    `ignore_merges`, a piece that is in the vocabulary is not merged. `adds_bos` is the default, for files that do not
    say whether texts begin with the BOS token.
    """

    pattern: str | tuple[str, ...]
    is_nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

DIGITS_THEN_GPT_2 = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""Single digits are split off first, then GPT-2's expression splits the text between them (StarCoder, SmolLM)."""

_GPT_4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4 = _GPT_4 % r"\p{N}{1,3}"
"""Pieces of at most three digits."""

GPT_4_SINGLE_DIGITS = _GPT_4 % r"\p{N}"
"""GPT-4's with single digits (Qwen 2, StableLM 2)."""

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words are split between lower and upper case."""

TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Mistral's: words are split between lower and upper case, and every digit is a piece."""
