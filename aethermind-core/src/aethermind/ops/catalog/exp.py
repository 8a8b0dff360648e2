"""The exponential function."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["EXP"]


def _reference(x: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("saturated", (np.array([-np.inf, -1e4, -200.0, -88.0, -10.0, -0.0, 0.0, 1e-6, 10.0, 1e4, np.inf]),))


EXP = Operator(
    schema=OperatorSchema.parse("exp(x: F[...]) -> (out: F[...] ~ x)"),
    summary="e to the power of x, element by element.",
    reference=_reference,
    samples=_samples,
    # Far left the result goes denormal in float32, and zero is as good an answer.
    tolerances=accumulated(absolute=1e-30),
)
