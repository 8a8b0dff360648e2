"""Rows of a table, picked by position: learned absolute positions, as in GPT-2 and BERT."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import rows_of
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["POSITION_EMBEDDING"]


def _reference(positions: Array, table: Array) -> Array:
    return table[positions]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_positions, hidden_size in ((5, 11, 7), (1, 3, 16), (0, 4, 8), (33, 100, 129), (300, 66_000, 3)):
        positions = rng.integers(0, num_positions, num_tokens, dtype=np.int64)
        label = f"T{num_tokens}_V{num_positions}_D{hidden_size}"
        yield Sample(label, (positions, normal(rng, num_positions, hidden_size)))
    yield Sample("first_and_last_row", (np.array([0, 8, 0, 8], np.int64), normal(rng, 9, 5)))


POSITION_EMBEDDING = Operator(
    schema=OperatorSchema.parse("position_embedding(positions: i64[T], table: W[V, D]) -> (out: F[T, D])"),
    summary="Row positions[t] of the table; the table stays row-major, it is never packed.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    gathered=frozenset({"table"}),
    check=rows_of("table", "positions"),
)
