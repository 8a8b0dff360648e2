"""The quotient of two tensors of one shape, element by element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, same_shaped
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["DIV"]


def _reference(a: Array, b: Array) -> Array:
    with np.errstate(divide="ignore"):
        return a / b


def _away_from_zero(rng: np.random.Generator, *shape: int) -> Array:
    x = normal(rng, *shape)
    return x + np.copysign(0.1, x)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2, _away_from_zero)
    yield Sample("by_zero", (np.array([1.0, -1.0, 1.0, 0.0]), np.array([0.0, 0.0, -0.0, 2.0])))


DIV = Operator(
    schema=OperatorSchema.parse("div(a: F[...], b: F[...]) -> (out: F[...] ~ a)"),
    summary="a / b, element by element, and infinite where only b is zero.",
    reference=_reference,
    samples=_samples,
    tolerances=ONE_ROUNDING,
)
