"""Reductions over the last dim: one result for each vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import vectors
from aethermind.ops.catalog._tolerances import EXACT, ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ARGMAX", "MAX", "MEAN", "MIN", "SUM"]


def _sum_reference(x: Array) -> Array:
    return x.sum(axis=-1)


def _sum_term_magnitudes(x: Array) -> Array:
    return _sum_reference(np.abs(x))


def _sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("cancelling", (np.array([[1e3, 1.0, -1e3], [1e-3, -1e3, 1e3]]),))


SUM = Operator(
    schema=OperatorSchema.parse("sum(x: F[..., D]) -> (out: F[...])"),
    summary="The sum over the last dim, in float32.",
    reference=_sum_reference,
    samples=_sum_samples,
    term_magnitudes=_sum_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""The sum of every vector."""


def _mean_reference(x: Array) -> Array:
    return x.mean(axis=-1)


def _mean_term_magnitudes(x: Array) -> Array:
    return _mean_reference(np.abs(x))


def _mean_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("cancelling", (np.array([[1e3, 1.0, -1e3], [1e-3, -1e3, 1e3]]),))


MEAN = Operator(
    schema=OperatorSchema.parse("mean(x: F[..., D]) -> (out: F[...])"),
    summary="The mean over the last dim, which is not empty, summed in float32.",
    reference=_mean_reference,
    samples=_mean_samples,
    term_magnitudes=_mean_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""The mean of every vector."""


def _max_reference(x: Array) -> Array:
    return x.max(axis=-1)


def _max_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("infinite", (np.array([[-np.inf, 2.0, -3.0], [1.0, np.inf, -1.0], [-0.5, -0.25, -1.0]]),))


MAX = Operator(
    schema=OperatorSchema.parse("max(x: F[..., D]) -> (out: F[...])"),
    summary="The largest element over the last dim, which is not empty.",
    reference=_max_reference,
    samples=_max_samples,
    tolerances=EXACT,
)
"""The largest element of every vector."""


def _min_reference(x: Array) -> Array:
    return x.min(axis=-1)


def _min_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("infinite", (np.array([[-np.inf, 2.0, -3.0], [1.0, np.inf, -1.0], [-0.5, -0.25, -1.0]]),))


MIN = Operator(
    schema=OperatorSchema.parse("min(x: F[..., D]) -> (out: F[...])"),
    summary="The smallest element over the last dim, which is not empty.",
    reference=_min_reference,
    samples=_min_samples,
    tolerances=EXACT,
)
"""The smallest element of every vector."""


def _argmax_reference(x: Array) -> Array:
    return np.argmax(x, axis=-1).astype(np.int32)


def _argmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("ties", (np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-1.0, -2.0, -3.0, -1.0]]),))
    yield Sample("zeros_of_both_signs", (np.array([[-1.0, -0.0, 0.0, -0.0], [-0.0, -0.0, 0.0, 0.0]]),))
    late = np.zeros((2, 33_001))
    late[[0, 1, 1], [32_999, 32_768, 33_000]] = 1.0
    yield Sample("late", (late,))
    yield Sample("masked", (np.array([[-np.inf, -7.0, -np.inf], [-np.inf, -np.inf, -np.inf]]),))


ARGMAX = Operator(
    schema=OperatorSchema.parse("argmax(x: F[..., D]) -> (index: i32[...])"),
    summary="The index of the largest element over the last dim, which is not empty; on ties the lowest index.",
    reference=_argmax_reference,
    samples=_argmax_samples,
    tolerances=EXACT,
)
"""The index of the largest element of every vector."""
