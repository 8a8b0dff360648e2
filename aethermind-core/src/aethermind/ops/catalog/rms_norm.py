"""Scales every vector to root mean square one, then by a weight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["RMS_NORM"]


def _reference(x: Array, weight: Array, *, eps: float) -> Array:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 896), (0, 16), (5, 2, 80), (4, 7, 8), (17, 33), (2, 1), (300, 9), (2, 2080), (1, 8200)):
        inputs = (normal(rng, *shape), normal(rng, shape[-1]))
        yield Sample("x".join(map(str, shape)), inputs, {"eps": 1e-6})
    yield Sample("zeros", (np.zeros((2, 5)), normal(rng, 5)), {"eps": 1e-5})
    yield Sample("small_against_eps", (normal(rng, 2, 19) * 1e-3, normal(rng, 19)), {"eps": 1e-5})


RMS_NORM = Operator(
    schema=OperatorSchema.parse("rms_norm(x: F[..., D], weight: F[D]; eps: float) -> (out: F[..., D] ~ x)"),
    summary="x / sqrt(mean(x²) + eps) * weight over the last dim, rounded to F once at the end.",
    reference=_reference,
    samples=_samples,
    tolerances=ONE_ROUNDING,
)
