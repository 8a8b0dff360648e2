"""SentencePiece's BPE (Kudo and Richardson 2018) as a tokenizer of the `tokenizers` library.

SentencePiece merges the neighbours whose union is the piece of the highest score; the library takes pairs in the order
of merging. Both are equivalent unless two pairs of equal score compete for a character.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["sentencepiece_bpe", "without_first_space"]

_SPACE = "▁"


def sentencepiece_bpe(
    vocabulary: Mapping[str, int], scores: Mapping[str, float], unknown: str | None, *, adds_space: bool
) -> FastTokenizer:
    """Return the tokenizer of a vocabulary with ids, and the scores of the pieces that text is merged to.

    Characters that are not pieces become `<0x..>` for each of their bytes where the vocabulary has these, else
    `unknown`. With `adds_space`, encoding prepends a space and decoding strips it.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = sorted(_pairs(scores), key=lambda pair: (-scores["".join(pair)], *(vocabulary[part] for part in pair)))
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
    for part, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        whole = state[part] or {"type": "Sequence", inner: []}
        steps = whole[inner] if whole["type"] == "Sequence" else [whole]
        kept = [step for step in steps if step["type"] not in ("Prepend", "Strip")]
        for step in kept:
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
        state[part] = {"type": "Sequence", inner: kept} if kept else None
    return Tokenizer.from_str(json.dumps(state))


def _pairs(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of pieces whose union is a piece."""
    for piece in scores:
        for middle in range(1, len(piece)):
            left, right = piece[:middle], piece[middle:]
            if left in scores and right in scores:
                yield left, right
