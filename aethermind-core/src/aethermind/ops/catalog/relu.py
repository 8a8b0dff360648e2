"""The activation max(x, 0)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["RELU"]


def _reference(x: Array) -> Array:
    return np.maximum(x, 0)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("edges", (np.array([-np.inf, -1e4, -1e-6, -0.0, 0.0, 1e-6, 1e4, np.inf]),))


RELU = Operator(
    schema=OperatorSchema.parse("relu(x: F[...]) -> (out: F[...] ~ x)"),
    summary="max(x, 0), element by element.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
