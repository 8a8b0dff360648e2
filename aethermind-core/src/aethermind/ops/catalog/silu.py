"""The activation x · sigmoid(x)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SILU", "sigmoid"]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _reference(x: Array) -> Array:
    return x * sigmoid(x)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("saturated", (np.array([-1e4, -200.0, -88.0, -20.0, -0.0, 0.0, 1e-6, 20.0, 88.0, 200.0, 1e4]),))


SILU = Operator(
    schema=OperatorSchema.parse("silu(x: F[...]) -> (out: F[...] ~ x)"),
    summary="x * sigmoid(x), element by element.",
    reference=_reference,
    samples=_samples,
    # Far left exp overflows or goes denormal in float32, and zero is as good an answer.
    tolerances=accumulated(absolute=1e-30),
)
