"""A view: the last two dims read as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MERGE_LAST"]


def _reference(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 7), (2, 3, 4, 5)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


MERGE_LAST = Operator(
    schema=OperatorSchema.parse("merge_last(x: F[..., A, B]) -> (out: F[..., A*B] = x)"),
    summary="The same memory with the last two dims seen as one; nothing runs.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
