"""Makes tokens that were there before less likely."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import check_tokens_of_rows
from aethermind.ops.catalog._sample_inputs import normal, token_lists
from aethermind.ops.catalog._tolerances import float32_only
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["REPETITION_PENALTY"]


def _reference(logits: Array, tokens: Array, cu_tokens: Array, penalty: Array) -> Array:
    out = logits.copy()
    counts = np.diff(cu_tokens)
    rows, factor = np.repeat(np.arange(len(logits)), counts), np.repeat(penalty, counts)
    tokens = tokens[: len(rows)]
    seen = logits[rows, tokens]
    out[rows, tokens] = np.where(seen > 0, seen / factor, seen * factor)
    return out


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, vocab_size in (
        ([2, 0, 5], 11),
        ([1], 33),
        ([0, 0], 7),
        ([], 5),
        ([3], 3),
        ([40, 1, 64, 0], 64),
        ([300, 0, 1500], 66_001),
        ([1, 0, 3, 2] * 10, 9),
    ):
        logits, penalty = normal(rng, len(lengths), vocab_size) * 5, rng.uniform(0.5, 2.0, len(lengths))
        label = f"V{vocab_size}_lists_{'_'.join(map(str, lengths)) or 'none'}"
        yield Sample(label, (logits, *token_lists(rng, lengths, vocab_size), penalty))
    logits = np.array([[0.0, -np.inf, 3.0, -3.0]])
    yield Sample(
        "zero_and_suppressed",
        (logits, np.arange(4, dtype=np.int32), np.array([0, 4], np.int32), np.array([1.5])),
    )


REPETITION_PENALTY = Operator(
    schema=OperatorSchema.parse(
        """repetition_penalty(logits: f32[R, V], tokens: i32[X], cu_tokens: i32[R+1], penalty: f32[R])
        -> (out: f32[R, V] ~ logits)"""
    ),
    summary=(
        "At tokens[cu_tokens[r] : cu_tokens[r+1]], which names no token twice, positive logits are "
        "divided by penalty[r] and the others multiplied."
    ),
    reference=_reference,
    samples=_samples,
    tolerances=float32_only(),
    check=check_tokens_of_rows,
)
