"""A view: the last dim read as two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SPLIT_LAST"]


def _reference(x: Array, *, count: int) -> Array:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, count in (((3, 16), 2), ((1, 33), 11), ((0, 8), 4), ((12,), 12), ((2, 3, 5), 1)):
        yield Sample(f"{'x'.join(map(str, shape))}_by_{count}", (normal(rng, *shape),), {"count": count})


SPLIT_LAST = Operator(
    schema=OperatorSchema.parse("split_last(x: F[..., D]; count: int) -> (out: F[..., count, D/count] = x)"),
    summary=(
        "The same memory with the last dim seen as [count, D/count]; nothing runs. With merge_last it makes every "
        "reshape whose dims are known."
    ),
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
