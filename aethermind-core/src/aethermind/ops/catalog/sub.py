"""The difference of two tensors of one shape, element by element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SUB"]


def _reference(a: Array, b: Array) -> Array:
    return a - b


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)


SUB = Operator(
    schema=OperatorSchema.parse("sub(a: F[...], b: F[...]) -> (out: F[...] ~ a)"),
    summary="a - b, element by element.",
    reference=_reference,
    samples=_samples,
    tolerances=ONE_ROUNDING,
)
