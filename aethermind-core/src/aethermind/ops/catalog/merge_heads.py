"""A view: the heads of a token read as one vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MERGE_HEADS"]


def _reference(x: Array) -> Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, head_dim in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7)):
        yield Sample(f"T{num_tokens}_H{num_heads}_C{head_dim}", (normal(rng, num_tokens, num_heads, head_dim),))


MERGE_HEADS = Operator(
    schema=OperatorSchema.parse("merge_heads(x: F[T, H, C]) -> (out: F[T, H*C] = x)"),
    summary="The same memory seen as [tokens, heads · head dim]; nothing runs.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
