"""Attention with linear biases (Press et al. 2022): the further back a key, the lower its score."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ALIBI", "alibi_slopes"]


def alibi_slopes(num_heads: int) -> Array:
    """The paper's slope for each head (float64 [num_heads]).

    For a power of two they are the geometric sequence from 2^(-8/n) to 2^-8; further heads take every second slope
    of the sequence for the next power of two.
    """
    power = 1 << (num_heads.bit_length() - 1)
    further = _geometric(2 * power)[::2][: num_heads - power]
    return np.concatenate([_geometric(power), further])


def _geometric(num_heads: int) -> Array:
    return 2.0 ** (-8.0 / num_heads * np.arange(1, num_heads + 1))


def _reference(scores: Array, slopes: Array) -> Array:
    return scores + _bias(scores, slopes)


def _bias(scores: Array, slopes: Array) -> Array:
    num_queries, num_keys = scores.shape[-2:]
    position = np.arange(num_keys - num_queries, num_keys)[:, None]
    distance = (np.arange(num_keys) - position).astype(scores.dtype)
    return slopes[:, None, None] * distance


def _term_magnitudes(scores: Array, slopes: Array) -> Array:
    # Masked scores stay -inf, exactly.
    return np.abs(np.where(np.isfinite(scores), scores, 0)) + np.abs(_bias(scores, slopes))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for leading, num_heads, num_queries, num_keys in (
        ((), 4, 3, 7),
        ((), 1, 1, 33),
        ((), 12, 5, 5),
        ((), 7, 0, 4),
        ((2,), 3, 17, 19),
        ((0,), 2, 4, 4),
        ((), 2, 20, 300),
        ((), 1, 130, 130),
    ):
        label = "x".join(map(str, (*leading, num_heads, num_queries, num_keys)))
        yield Sample(label, (normal(rng, *leading, num_heads, num_queries, num_keys), alibi_slopes(num_heads)))
    masked = np.where(np.tri(4, dtype=bool), normal(rng, 2, 4, 4), -np.inf)
    yield Sample("masked", (masked, alibi_slopes(2)))


ALIBI = Operator(
    schema=OperatorSchema.parse("alibi(scores: F[..., H, Q, S], slopes: f32[H]) -> (out: F[..., H, Q, S] ~ scores)"),
    summary="scores + slopes[h] * (key's position - query's position); the last query stands at the last key.",
    reference=_reference,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
