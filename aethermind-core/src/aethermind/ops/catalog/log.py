"""The natural logarithm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, same_shaped
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["LOG"]


def _reference(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(x)


def _positive(rng: np.random.Generator, *shape: int) -> Array:
    return np.exp(2 * normal(rng, *shape))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1, _positive)
    yield Sample("edges", (np.array([0.0, 1e-4, 0.5, 0.99, 1.0, 1.01, 2.0, 6e4, np.inf]),))


LOG = Operator(
    schema=OperatorSchema.parse("log(x: F[...]) -> (out: F[...] ~ x)"),
    summary="The natural logarithm of x >= 0, element by element; that of zero is -inf.",
    reference=_reference,
    samples=_samples,
    # Around one the result vanishes, and with it what an error could be relative to.
    tolerances=accumulated(absolute=1e-6),
)
