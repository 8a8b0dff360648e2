"""The smallest element of every vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import vectors
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MIN"]


def _reference(x: Array) -> Array:
    return x.min(axis=-1)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("infinite", (np.array([[-np.inf, 2.0, -3.0], [1.0, np.inf, -1.0], [-0.5, -0.25, -1.0]]),))


MIN = Operator(
    schema=OperatorSchema.parse("min(x: F[..., D]) -> (out: F[...])"),
    summary="The smallest element over the last dim, which is not empty.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
