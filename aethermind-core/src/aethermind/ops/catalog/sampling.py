"""Sampling of one token per row, and log probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import index_check
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import EXACT, Array, Operator, Sample, float32_only
from aethermind.ops.schema import OperatorSchema

__all__ = ["SAMPLE_TOKENS", "TOKEN_LOGPROBS"]


def _sample_reference(
    logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array
) -> Array:
    rows = zip(logits, temperature, top_k, top_p, min_p, uniform, strict=True)
    return np.array([_sample(*row) for row in rows], np.int32)


def _sample(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    if temperature == 0 or not np.isfinite(logits.max()):  # the softmax is undefined without finite logits
        return int(np.argmax(logits))
    # A cumulative sum over a large vocabulary loses the tail in float32.
    logits = logits.astype(np.float64)
    weights = np.exp((logits - logits.max()) / float(temperature))
    if top_k == 0 and top_p >= 1 and min_p <= 0:
        return _inverse_cdf(weights, uniform)
    order = np.argsort(-logits, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    cumulative = np.cumsum(weights[order])
    order = order[: int(np.sum(cumulative[:-1] < top_p * cumulative[-1])) + 1]
    order = order[weights[order] >= min_p * weights[order[0]]]
    return int(order[_inverse_cdf(weights[order], uniform)])


def _inverse_cdf(weights: Array, uniform: float) -> int:
    """Return the first index whose cumulative probability exceeds `uniform`, a number in [0, 1).

    If the number is uniformly distributed, this samples from the distribution.
    """
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative / cumulative[-1], uniform, side="right"))


def _sample_samples(rng: np.random.Generator) -> Iterator[Sample]:
    # Rows of (temperature, top_k, top_p, min_p); the last three are off with:
    off = (0, 1.0, 0.0)
    mixed = [
        (0.0, *off),
        (1.0, *off),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.9, 20, 0.9, 0.05),
    ]
    for label, vocab_size, parameters in (
        ("greedy", 33, [(0.0, *off)] * 3),
        ("no_cut", 33, [(1.0, *off)] * 5),
        ("mixed", 100, mixed * 3),
        ("one_row", 17, [(0.8, 3, 0.95, 0.0)]),
        ("one_token", 1, [(1.0, *off), (1.0, 1, 0.5, 0.5)]),
        ("top_k_beyond_vocabulary", 7, [(1.0, 50, 1.0, 0.0)] * 4),
        ("top_k_1", 65, [(1.0, 1, 1.0, 0.0)] * 3),
        ("top_p_keeps_one", 65, [(1.0, 0, 1e-6, 0.0)] * 3),
        ("empty", 9, []),
        ("many_rows", 33, mixed * 7),
        ("large_vocabulary", 66_001, mixed),
    ):
        yield Sample(
            label,
            _sample_inputs(normal(rng, len(parameters), vocab_size) * 2, parameters, rng.random(len(parameters))),
        )
    parameters = [(0.0, *off), (1.0, 3, 1.0, 0.0), (1.0, 0, 0.61, 0.0), (1.0, *off)]
    yield Sample("ties", _sample_inputs(np.zeros((4, 40)), parameters, [0.5, 0.9, 0.7, 0.61]))
    zeros = np.tile([-1.0, -0.0, 0.0, -0.0], (3, 1))
    parameters = [(0.0, *off), (1.0, 1, 1.0, 0.0), (1.0, 2, 1.0, 0.0)]
    yield Sample("zeros_of_both_signs", _sample_inputs(zeros, parameters, [0.5] * 3))
    late = np.full((3, 66_001), -4.0)
    late[:, 66_000] = 30.0
    yield Sample("late", _sample_inputs(late, [(0.0, *off), (1.0, *off), (1.0, 5, 0.9, 0.0)], [0.5] * 3))
    far = normal(rng, 4, 33) + np.array([[500.0], [-500.0], [500.0], [-500.0]])
    parameters = [(1.0, *off)] * 2 + [(0.5, 9, 0.9, 0.05)] * 2
    yield Sample("far_from_zero", _sample_inputs(far, parameters, [0.3, 0.6, 0.2, 0.8]))
    yield Sample("top_p_reached_exactly", _sample_inputs(np.zeros((1, 4)), [(1.0, 0, 0.5, 0.0)], [0.75]))
    suppressed = np.where(np.arange(11) % 3 == 1, normal(rng, 4, 11), -np.inf)
    yield Sample(
        "suppressed",
        _sample_inputs(
            suppressed,
            [(1.0, *off), (1.0, *off), (1.0, 9, 0.9, 0.0), (0.0, *off)],
            [0.0, 0.999, 0.3, 0.3],
        ),
    )


def _sample_inputs(
    logits: Array, parameters: list[tuple[float, int, float, float]], uniform: Array | list[float]
) -> tuple[Array, ...]:
    temperature, top_k, top_p, min_p = np.array(parameters, np.float64).reshape(-1, 4).T
    return logits, temperature, top_k.astype(np.int32), top_p, min_p, np.asarray(uniform, np.float64)


SAMPLE_TOKENS = Operator(
    schema=OperatorSchema.parse(
        """sample_tokens(logits: f32[R, V], temperature: f32[R], top_k: i32[R], top_p: f32[R], min_p: f32[R],
        uniform: f32[R]) -> (token_ids: i32[R])"""
    ),
    summary=(
        "Temperature 0 selects the largest logit, on ties the lowest id. Else p = softmax(logits / temperature). The "
        "candidates are the top_k tokens of largest p (0: all), of these the fewest whose p sum to top_p, of these "
        "those with p >= min_p * max(p). The result is the first candidate up to which the renormalised p sum to more "
        "than uniform, the row's random number in [0, 1). Candidates are in descending order of p, ties by id, or in "
        "order of id if top_k is 0, top_p >= 1 and min_p <= 0. If the largest logit of a row is not finite, the result "
        "is the lowest id that has it."
    ),
    reference=_sample_reference,
    samples=_sample_samples,
    tolerances=EXACT,
)
"""Samples one token per row, with the row's temperature, top-k, top-p and min-p."""


def _logprobs_reference(logits: Array, token_ids: Array, *, k: int) -> tuple[Array, Array, Array, Array]:
    num_rows, num_top = len(logits), min(k, logits.shape[1])
    logprobs = logits - _log_sum_exp(logits)
    rows = np.arange(num_rows)
    chosen = logits[rows, token_ids]
    rank = 1 + np.sum(logits > chosen[:, None], axis=1)
    top_ids = np.full((num_rows, k), -1, np.int32)
    top_ids[:, :num_top] = np.argsort(-logits, axis=1, kind="stable")[:, :num_top]
    top_logprobs = np.full((num_rows, k), -np.inf, logits.dtype)
    top_logprobs[:, :num_top] = np.take_along_axis(logprobs, top_ids[:, :num_top], axis=1)
    return logprobs[rows, token_ids], rank.astype(np.int32), top_ids, top_logprobs


def _log_sum_exp(logits: Array) -> Array:
    """Return log(sum(exp(logits))) of each row: [R, 1]."""
    largest = logits.max(axis=1, keepdims=True)
    return largest + np.log(np.sum(np.exp(logits - largest), axis=1, keepdims=True))


def _logprobs_term_magnitudes(logits: Array, token_ids: Array, *, k: int) -> tuple[Array, Array, Array, Array]:
    logprob, rank, top_ids, top_logprobs = _logprobs_reference(logits, token_ids, k=k)
    total = np.abs(_log_sum_exp(logits))
    # A logprob near zero is the difference of two numbers of almost equal size.
    chosen = np.where(np.isfinite(logprob), np.abs(logprob) + 2 * total[:, 0], 0)
    top = np.where(np.isfinite(top_logprobs), np.abs(top_logprobs) + 2 * total, 0)
    return chosen, np.zeros_like(rank), np.zeros_like(top_ids), top


def _logprobs_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_rows, vocab_size, k in (
        (3, 11, 4),
        (1, 33, 1),
        (0, 8, 2),
        (5, 100, 20),
        (2, 3, 5),
        (4, 65, 0),
        (2, 1, 1),
        (40, 70, 5),
        (2, 66_001, 20),
    ):
        logits = normal(rng, num_rows, vocab_size) * 4
        token_ids = rng.integers(0, vocab_size, num_rows, dtype=np.int32)
        yield Sample(f"R{num_rows}_V{vocab_size}_k{k}", (logits, token_ids), {"k": k})
    yield Sample("ties", (np.array([[1.0, 2.0, 1.0, 2.0, 2.0]] * 3), np.array([0, 4, 1], np.int32)), {"k": 4})
    levels = rng.integers(0, 3, (2, 50)).astype(np.float64)
    yield Sample("many_ties", (levels, np.array([7, 49], np.int32)), {"k": 30})
    zeros = np.array([[-0.0, 0.0, -0.0, -1.0]])
    yield Sample("zeros_of_both_signs", (zeros, np.array([1], np.int32)), {"k": 4})
    yield Sample(
        "far_from_zero", (normal(rng, 2, 33) + np.array([[1000.0], [-1000.0]]), np.array([3, 4], np.int32)), {"k": 3}
    )
    suppressed = np.array([[-np.inf, 0.5, -np.inf, 2.0], [30.0, -np.inf, 0.0, -30.0]])
    yield Sample("suppressed", (suppressed, np.array([3, 1], np.int32)), {"k": 3})


TOKEN_LOGPROBS = Operator(
    schema=OperatorSchema.parse(
        """token_logprobs(logits: f32[R, V], token_ids: i32[R]; k: int)
        -> (logprob: f32[R], rank: i32[R], top_ids: i32[R, k], top_logprobs: f32[R, k])"""
    ),
    summary=(
        "The log softmax at the token, its rank (1 + the number of larger logits), and the k largest in descending "
        "order, ties by id; if the vocabulary is smaller than k, the rest has id -1 and logprob -inf."
    ),
    reference=_logprobs_reference,
    samples=_logprobs_samples,
    term_magnitudes=_logprobs_term_magnitudes,
    tolerances=float32_only(),
    check=index_check("logits", "token_ids", axis=1),
)
"""Log probability and rank of the chosen token, and the k most likely tokens."""
