"""The sum of two tensors of one shape, such as a residual and a branch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ADD"]


def _reference(a: Array, b: Array) -> Array:
    return a + b


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)
    yield Sample("zeros", (np.array([0.0, -0.0, 0.0, 2.0, 0.0]), np.array([1.0, 2.0, 0.0, 0.0, -3.0])))


ADD = Operator(
    schema=OperatorSchema.parse("add(a: F[...], b: F[...]) -> (out: F[...] ~ a)"),
    summary="a + b, element by element.",
    reference=_reference,
    samples=_samples,
    tolerances=ONE_ROUNDING,
)
