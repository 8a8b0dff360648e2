"""Where the largest element of every vector is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import vectors
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ARGMAX"]


def _reference(x: Array) -> Array:
    return np.argmax(x, axis=-1).astype(np.int32)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("ties", (np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-1.0, -2.0, -3.0, -1.0]]),))
    yield Sample("zeros_of_both_signs", (np.array([[-1.0, -0.0, 0.0, -0.0], [-0.0, -0.0, 0.0, 0.0]]),))
    late = np.zeros((2, 33_001))
    late[[0, 1, 1], [32_999, 32_768, 33_000]] = 1.0
    yield Sample("late", (late,))
    yield Sample("masked", (np.array([[-np.inf, -7.0, -np.inf], [-np.inf, -np.inf, -np.inf]]),))


ARGMAX = Operator(
    schema=OperatorSchema.parse("argmax(x: F[..., D]) -> (index: i32[...])"),
    summary="The index of the largest element over the last dim, which is not empty, the lowest one on ties.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
