"""What the model thought of the chosen token, and its favourites."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import rows_of
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import float32_only
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["TOKEN_LOGPROBS"]


def _reference(logits: Array, token_ids: Array, *, k: int) -> tuple[Array, Array, Array, Array]:
    num_rows, num_found = len(logits), min(k, logits.shape[1])
    logprobs = logits - _log_sum_exp(logits)
    rows = np.arange(num_rows)
    chosen = logits[rows, token_ids]
    rank = 1 + np.sum(logits > chosen[:, None], axis=1)
    top_ids = np.full((num_rows, k), -1, np.int32)
    top_ids[:, :num_found] = np.argsort(-logits, axis=1, kind="stable")[:, :num_found]
    top_logprobs = np.full((num_rows, k), -np.inf, logits.dtype)
    top_logprobs[:, :num_found] = np.take_along_axis(logprobs, top_ids[:, :num_found], axis=1)
    return logprobs[rows, token_ids], rank.astype(np.int32), top_ids, top_logprobs


def _log_sum_exp(logits: Array) -> Array:
    """[R, 1]"""
    largest = logits.max(axis=1, keepdims=True)
    return largest + np.log(np.sum(np.exp(logits - largest), axis=1, keepdims=True))


def _term_magnitudes(logits: Array, token_ids: Array, *, k: int) -> tuple[Array, Array, Array, Array]:
    logprob, rank, top_ids, top_logprobs = _reference(logits, token_ids, k=k)
    total = np.abs(_log_sum_exp(logits))
    # A logprob near zero is the difference of a logit and a sum that is almost as large.
    chosen = np.where(np.isfinite(logprob), np.abs(logprob) + 2 * total[:, 0], 0)
    top = np.where(np.isfinite(top_logprobs), np.abs(top_logprobs) + 2 * total, 0)
    return chosen, np.zeros_like(rank), np.zeros_like(top_ids), top


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
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
        "log softmax at the token, 1 + the number of strictly larger logits, and the k largest in "
        "descending order, ties by id; where the vocabulary is smaller than k the rest is id -1, logprob "
        "-inf."
    ),
    reference=_reference,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=float32_only(),
    check=rows_of("logits", "token_ids", axis=1),
)
