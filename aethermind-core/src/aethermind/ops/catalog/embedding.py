"""Rows of a table, picked by token id."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import rows_of
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["EMBEDDING"]


def _reference(token_ids: Array, table: Array) -> Array:
    return table[token_ids]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, vocab_size, hidden_size in ((5, 11, 7), (1, 3, 16), (0, 4, 8), (33, 100, 129), (300, 66_000, 3)):
        token_ids = rng.integers(0, vocab_size, num_tokens, dtype=np.int32)
        yield Sample(f"T{num_tokens}_V{vocab_size}_D{hidden_size}", (token_ids, normal(rng, vocab_size, hidden_size)))
    yield Sample("first_and_last_row", (np.array([0, 8, 0, 8], np.int32), normal(rng, 9, 5)))


EMBEDDING = Operator(
    schema=OperatorSchema.parse("embedding(token_ids: i32[T], table: W[V, D]) -> (out: F[T, D])"),
    summary="Row token_ids[t] of the table, which is row-major unless another operator has it packed.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    gathered=frozenset({"table"}),
    check=rows_of("table", "token_ids"),
)
