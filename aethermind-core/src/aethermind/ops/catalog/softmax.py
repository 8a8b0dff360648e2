"""Turns every vector into a distribution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import vectors
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SOFTMAX"]


def _reference(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("masked", (np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, -2.0]]),))
    yield Sample("saturated", (np.array([[1e4, 1e4, 0.0], [-1e4, -1e4, -2e4], [0.0, -50.0, -100.0]]),))


SOFTMAX = Operator(
    schema=OperatorSchema.parse("softmax(x: F[..., D]) -> (out: F[..., D] ~ x)"),
    summary="exp(x - max(x)), divided by its sum over the last dim; each vector has a finite element.",
    reference=_reference,
    samples=_samples,
    # A weight far below the largest goes denormal in float32, and zero is as good an answer.
    tolerances=accumulated(absolute=1e-30),
)
