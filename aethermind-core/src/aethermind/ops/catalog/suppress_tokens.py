"""Makes tokens impossible, for instance the end of text before a minimum length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import check_tokens_of_rows
from aethermind.ops.catalog._sample_inputs import normal, token_lists
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SUPPRESS_TOKENS"]


def _reference(logits: Array, tokens: Array, cu_tokens: Array) -> Array:
    out = logits.copy()
    rows = np.repeat(np.arange(len(logits)), np.diff(cu_tokens))
    out[rows, tokens[: len(rows)]] = -np.inf
    return out


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, vocab_size in (
        ([2, 0, 5], 11),
        ([1], 33),
        ([0, 0], 7),
        ([], 5),
        ([3], 3),
        ([4, 1, 16, 0], 64),
        ([300, 0, 1500], 66_001),
        ([1, 0, 3, 2] * 10, 9),
    ):
        logits = normal(rng, len(lengths), vocab_size)
        label = f"V{vocab_size}_lists_{'_'.join(map(str, lengths)) or 'none'}"
        yield Sample(label, (logits, *token_lists(rng, lengths, vocab_size)))


SUPPRESS_TOKENS = Operator(
    schema=OperatorSchema.parse(
        "suppress_tokens(logits: f32[R, V], tokens: i32[X], cu_tokens: i32[R+1]) -> (out: f32[R, V] ~ logits)"
    ),
    summary="Row r becomes -inf at tokens[cu_tokens[r] : cu_tokens[r+1]].",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    check=check_tokens_of_rows,
)
