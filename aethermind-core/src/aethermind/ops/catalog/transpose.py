"""Swaps the last two dims."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["TRANSPOSE"]


def _reference(x: Array) -> Array:
    return np.swapaxes(x, -2, -1)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 33), (0, 8), (70, 33), (2, 3, 17), (2, 3, 16, 5), (300, 130), (40, 9, 7)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


TRANSPOSE = Operator(
    schema=OperatorSchema.parse("transpose(x: F[..., M, N]) -> (out: F[..., N, M])"),
    summary="Every matrix of the last two dims with rows and columns swapped, written anew.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
