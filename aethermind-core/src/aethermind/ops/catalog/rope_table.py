"""Cosines and sines of the rotary embedding at the positions of a step; every layer uses the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._tolerances import float32_only
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ROPE_TABLE"]

_LAST_AS_TRAINED = 2**24


def _reference(positions: Array, inv_freq: Array, *, scale: float) -> Array:
    # Models are trained with the angle rounded to float32; at position 100 000 that shifts it by up to 0.004.
    frequencies = inv_freq.astype(np.float32)
    rounded = positions.astype(np.float32)[:, None] * frequencies
    exact = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    angle = np.where(np.abs(positions)[:, None] <= _LAST_AS_TRAINED, rounded, exact)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) * scale
    return table.astype(inv_freq.dtype)


def _term_magnitudes(positions: Array, inv_freq: Array, *, scale: float) -> Array:
    return np.full((len(positions), 2 * len(inv_freq)), abs(scale))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, head_dim in ((5, 8), (1, 64), (0, 16), (17, 80), (33, 128), (300, 8)):
        positions = rng.integers(0, 4096, num_tokens, dtype=np.int64)
        yield Sample(f"T{num_tokens}_C{head_dim}", (positions, _inverse_frequencies(head_dim, 1e4)))
    far = np.array([0, 1, 32767, 131071, 1000000], np.int64)
    yield Sample("far_positions", (far, _inverse_frequencies(64, 1e6)))
    beyond = np.array([2**24 - 1, 2**24, 2**24 + 1, 2**31 + 5, -(2**31) - 5, 2**40 + 1], np.int64)
    yield Sample("beyond_float32", (beyond, _inverse_frequencies(64, 1e6)))
    yield Sample("scaled", (np.arange(7, dtype=np.int64), _inverse_frequencies(10, 1e4)), {"scale": 1.1386294})


def _inverse_frequencies(head_dim: int, theta: float) -> Array:
    return theta ** -(np.arange(0, head_dim, 2) / head_dim)


ROPE_TABLE = Operator(
    schema=OperatorSchema.parse(
        "rope_table(positions: i64[T], inv_freq: f32[E]; scale: float = 1.0) -> (table: f32[T, 2*E])"
    ),
    summary="[cos(p·f)·scale | sin(p·f)·scale], the product p·f rounded to float32 as models are trained; "
    "beyond 2^24 to either side, where float32 lacks positions, to float64. Positions may be negative.",
    reference=_reference,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=float32_only(relative_to_terms=1e-6),
)
