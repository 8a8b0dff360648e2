"""Averages every vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import vectors
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MEAN"]


def _reference(x: Array) -> Array:
    return x.mean(axis=-1)


def _term_magnitudes(x: Array) -> Array:
    return _reference(np.abs(x))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("cancelling", (np.array([[1e3, 1.0, -1e3], [1e-3, -1e3, 1e3]]),))


MEAN = Operator(
    schema=OperatorSchema.parse("mean(x: F[..., D]) -> (out: F[...])"),
    summary="The mean over the last dim, which is not empty, summed in float32.",
    reference=_reference,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
