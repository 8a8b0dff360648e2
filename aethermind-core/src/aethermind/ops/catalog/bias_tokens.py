"""Adds to the logits of listed tokens: biases that a request asks for, and what its own tokens cost it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import check_tokens_of_rows
from aethermind.ops.catalog._sample_inputs import normal, token_lists
from aethermind.ops.catalog._tolerances import float32_only
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["BIAS_TOKENS"]


def _reference(logits: Array, tokens: Array, cu_tokens: Array, bias: Array) -> Array:
    out = logits.copy()
    rows = np.repeat(np.arange(len(logits)), np.diff(cu_tokens))
    out[rows, tokens[: len(rows)]] += bias[: len(rows)]
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
        logits, bias = normal(rng, len(lengths), vocab_size) * 5, normal(rng, sum(lengths)) * 3
        label = f"V{vocab_size}_lists_{'_'.join(map(str, lengths)) or 'none'}"
        yield Sample(label, (logits, *token_lists(rng, lengths, vocab_size), bias))
    logits = np.array([[0.0, -np.inf, 3.0, -3.0]])
    yield Sample(
        "suppressed",
        (logits, np.arange(4, dtype=np.int32), np.array([0, 4], np.int32), np.array([1.5, 100.0, -np.inf, -100.0])),
    )


BIAS_TOKENS = Operator(
    schema=OperatorSchema.parse(
        """bias_tokens(logits: f32[R, V], tokens: i32[X], cu_tokens: i32[R+1], bias: f32[X])
        -> (out: f32[R, V] ~ logits)"""
    ),
    summary="Adds bias[i] at tokens[i] of row r for i in cu_tokens[r] : cu_tokens[r+1]; no row names a token twice.",
    reference=_reference,
    samples=_samples,
    tolerances=float32_only(),
    check=check_tokens_of_rows,
)
