"""Rows of a matrix replaced by others: how embeddings that no token id stands for enter a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import rows_of
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SCATTER_ROWS"]


def _reference(x: Array, values: Array, rows: Array) -> Array:
    out = x.copy()
    out[rows] = values
    return out


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_rows, hidden_size in (
        (9, 4, 7),
        (1, 1, 32),
        (5, 0, 3),
        (17, 17, 65),
        (40, 3, 5),
        (300, 130, 9),
    ):
        rows = rng.permutation(num_tokens)[:num_rows].astype(np.int32)
        inputs = (normal(rng, num_tokens, hidden_size), normal(rng, num_rows, hidden_size), rows)
        yield Sample(f"T{num_tokens}_E{num_rows}_D{hidden_size}", inputs)


SCATTER_ROWS = Operator(
    schema=OperatorSchema.parse("scatter_rows(x: F[T, D], values: F[E, D], rows: i32[E]) -> (out: F[T, D])"),
    summary="x with row rows[e] replaced by values[e]; no row is named twice.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    check=rows_of("x", "rows"),
)
