"""Swaps tokens and heads, so that each head's matrix lies in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["PERMUTE_HEADS"]


def _reference(x: Array) -> Array:
    return np.swapaxes(x, -3, -2)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7), (17, 3, 10), (2, 5, 3, 9), (300, 3, 10), (70, 33, 4)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


PERMUTE_HEADS = Operator(
    schema=OperatorSchema.parse("permute_heads(x: F[..., T, H, C]) -> (out: F[..., H, T, C])"),
    summary=(
        "The second and third dim from the end swapped, written anew: [tokens, heads, head dim] to [heads, tokens, "
        "head dim] and back. With transpose, split_last and merge_last it makes every permutation of dims."
    ),
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
