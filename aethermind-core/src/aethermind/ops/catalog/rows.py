"""Operators that gather rows of a matrix by index, or replace them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from aethermind.ops.catalog._index_checks import index_check
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import EXACT, Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["EMBEDDING", "GATHER_ROWS", "POSITION_EMBEDDING", "SCATTER_ROWS"]


def _embedding_reference(token_ids: Array, table: Array) -> Array:
    return table[token_ids]


def _lookup_samples(rng: np.random.Generator, dtype: DTypeLike) -> Iterator[Sample]:
    """Yield samples of indices (of this dtype) and a table [V, D]."""
    for num_tokens, num_rows, hidden_size in ((5, 11, 7), (1, 3, 16), (0, 4, 8), (33, 100, 129), (300, 66_000, 3)):
        indices = rng.integers(0, num_rows, num_tokens, dtype=dtype)
        yield Sample(f"T{num_tokens}_V{num_rows}_D{hidden_size}", (indices, normal(rng, num_rows, hidden_size)))
    yield Sample("first_and_last_row", (np.array([0, 8, 0, 8], dtype), normal(rng, 9, 5)))


EMBEDDING = Operator(
    schema=OperatorSchema.parse("embedding(token_ids: i32[T], table: W[V, D]) -> (out: F[T, D])"),
    summary="Row token_ids[t] of the table, which is row-major unless another operator needs it packed.",
    reference=_embedding_reference,
    samples=partial(_lookup_samples, dtype=np.int32),
    tolerances=EXACT,
    gathered=frozenset({"table"}),
    check=index_check("table", "token_ids"),
)
"""The embedding lookup: rows of a table by token id."""


def _position_embedding_reference(positions: Array, table: Array) -> Array:
    return table[positions]


POSITION_EMBEDDING = Operator(
    schema=OperatorSchema.parse("position_embedding(positions: i64[T], table: W[V, D]) -> (out: F[T, D])"),
    summary="Row positions[t] of the table, which is row-major and never packed.",
    reference=_position_embedding_reference,
    samples=partial(_lookup_samples, dtype=np.int64),
    tolerances=EXACT,
    gathered=frozenset({"table"}),
    check=index_check("table", "positions"),
)
"""Rows of a table by position: learned absolute position embeddings, as in GPT-2 and BERT."""


def _gather_rows_reference(x: Array, rows: Array) -> Array:
    return x[rows]


def _gather_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    summary="Row rows[r] of x; rows may repeat an index.",
    reference=_gather_rows_reference,
    samples=_gather_rows_samples,
    tolerances=EXACT,
    gathered=frozenset({"x"}),
    check=index_check("x", "rows"),
)
"""Gathers the rows of activations that later operators need, such as those of the last token of every sequence."""


def _scatter_rows_reference(x: Array, values: Array, rows: Array) -> Array:
    out = x.copy()
    out[rows] = values
    return out


def _scatter_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    summary="x with row rows[e] replaced by values[e]; the indices in rows are distinct.",
    reference=_scatter_rows_reference,
    samples=_scatter_rows_samples,
    tolerances=EXACT,
    check=index_check("x", "rows"),
)
"""Replaces rows of a matrix, such as embeddings of image tokens, which have no row in the embedding table."""
