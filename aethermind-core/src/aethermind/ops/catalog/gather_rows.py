"""The rows of a step that somebody wants to see, for instance the last token of every sequence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import rows_of
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["GATHER_ROWS"]


def _reference(x: Array, rows: Array) -> Array:
    return x[rows]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_rows, hidden_size in (
        (9, 4, 7),
        (1, 1, 32),
        (5, 0, 3),
        (17, 17, 65),
        (3, 8, 5),
        (66_001, 130, 3),
    ):
        rows = rng.integers(0, num_tokens, num_rows, dtype=np.int32)
        yield Sample(f"T{num_tokens}_R{num_rows}_D{hidden_size}", (normal(rng, num_tokens, hidden_size), rows))


GATHER_ROWS = Operator(
    schema=OperatorSchema.parse("gather_rows(x: F[T, D], rows: i32[R]) -> (out: F[R, D])"),
    summary="Row rows[r] of x; a row may be asked for more than once.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    gathered=frozenset({"x"}),
    check=rows_of("x", "rows"),
)
