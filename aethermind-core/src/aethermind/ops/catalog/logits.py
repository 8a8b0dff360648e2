"""Changes to logits before sampling: suppression, penalties, biases and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._index_checks import check_tokens_of_rows
from aethermind.ops.catalog._sample_inputs import normal, token_lists
from aethermind.ops.operator import EXACT, Array, Operator, Sample, float32_only
from aethermind.ops.schema import OperatorSchema

__all__ = ["BIAS_TOKENS", "MASK_TOKENS", "REPETITION_PENALTY", "SUPPRESS_TOKENS"]


def _suppress_reference(logits: Array, tokens: Array, cu_tokens: Array) -> Array:
    out = logits.copy()
    rows = np.repeat(np.arange(len(logits)), np.diff(cu_tokens))
    out[rows, tokens[: len(rows)]] = -np.inf
    return out


def _suppress_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    reference=_suppress_reference,
    samples=_suppress_samples,
    tolerances=EXACT,
    check=check_tokens_of_rows,
)
"""Excludes tokens, such as the end of text before a minimum length."""


def _penalty_reference(logits: Array, tokens: Array, cu_tokens: Array, penalty: Array) -> Array:
    out = logits.copy()
    counts = np.diff(cu_tokens)
    rows, factor = np.repeat(np.arange(len(logits)), counts), np.repeat(penalty, counts)
    tokens = tokens[: len(rows)]
    seen = logits[rows, tokens]
    out[rows, tokens] = np.where(seen > 0, seen / factor, seen * factor)
    return out


def _penalty_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
        "At tokens[cu_tokens[r] : cu_tokens[r+1]], which are distinct, positive logits are divided by penalty[r] and "
        "the others multiplied."
    ),
    reference=_penalty_reference,
    samples=_penalty_samples,
    tolerances=float32_only(),
    check=check_tokens_of_rows,
)
"""The repetition penalty (Keskar et al. 2019, arXiv:1909.05858)."""


def _bias_reference(logits: Array, tokens: Array, cu_tokens: Array, bias: Array) -> Array:
    out = logits.copy()
    rows = np.repeat(np.arange(len(logits)), np.diff(cu_tokens))
    out[rows, tokens[: len(rows)]] += bias[: len(rows)]
    return out


def _bias_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    summary="Adds bias[i] at tokens[i] of row r for i in cu_tokens[r] : cu_tokens[r+1]; tokens of a row are distinct.",
    reference=_bias_reference,
    samples=_bias_samples,
    tolerances=float32_only(),
    check=check_tokens_of_rows,
)
"""Adds to the logits of listed tokens: logit biases, and presence and frequency penalties."""


def _mask_reference(logits: Array, mask: Array) -> Array:
    # The first byte of a little-endian word has the lowest bits.
    bits = np.unpackbits(np.ascontiguousarray(mask, "<i4").view(np.uint8), axis=1, bitorder="little")
    return np.where(bits[:, : logits.shape[1]] == 1, logits, -np.inf).astype(logits.dtype)


def _mask_check(_: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    vocab_size, num_words = shapes["logits"][1], shapes["mask"][1]
    if num_words * 32 < vocab_size:
        raise OperatorError(f"mask has {num_words} words of 32 tokens, but the logits have {vocab_size} tokens.")


def _mask_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_rows, vocab_size, extra in (
        (3, 11, 0),
        (1, 32, 0),
        (2, 33, 0),
        (0, 8, 0),
        (5, 257, 1),
        (2, 1, 0),
        (40, 70, 0),
        (2, 66_001, 0),
    ):
        num_words = (vocab_size + 31) // 32 + extra
        mask = rng.integers(-(2**31), 2**31, (num_rows, num_words)).astype(np.int32)
        yield Sample(f"R{num_rows}_V{vocab_size}_W{num_words}", (normal(rng, num_rows, vocab_size), mask))
    mask = np.array([[-1, -1], [0, 0], [-(2**31), 1]], np.int32)
    yield Sample("all_none_two", (normal(rng, 3, 40), mask))


MASK_TOKENS = Operator(
    schema=OperatorSchema.parse("mask_tokens(logits: f32[R, V], mask: i32[R, W]) -> (out: f32[R, V] ~ logits)"),
    summary="Row r becomes -inf at each token t whose bit, bit t % 32 of mask[r, t // 32], is 0.",
    reference=_mask_reference,
    samples=_mask_samples,
    tolerances=EXACT,
    check=_mask_check,
)
"""Masks the tokens that a grammar, or a list of allowed tokens, does not allow next."""
