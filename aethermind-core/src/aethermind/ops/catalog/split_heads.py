"""A view: the last dim read as heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SPLIT_HEADS"]


def _reference(x: Array, *, num_heads: int) -> Array:
    return x.reshape(x.shape[0], num_heads, x.shape[1] // num_heads)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, head_dim in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7)):
        x = normal(rng, num_tokens, num_heads * head_dim)
        yield Sample(f"T{num_tokens}_H{num_heads}_C{head_dim}", (x,), {"num_heads": num_heads})


SPLIT_HEADS = Operator(
    schema=OperatorSchema.parse("split_heads(x: F[T, Q]; num_heads: int) -> (out: F[T, num_heads, Q/num_heads] = x)"),
    summary="The same memory seen as [tokens, heads, head dim]; nothing runs.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
