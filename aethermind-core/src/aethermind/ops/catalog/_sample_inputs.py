"""Random inputs that several pages draw their samples from; floats are float64 of order one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aethermind.ops.operator import Array

__all__ = ["PagedBatch", "normal", "paged_batch", "token_lists", "weight"]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal activations."""
    return rng.standard_normal(shape)


def weight(rng: np.random.Generator, num_outputs: int, num_inputs: int) -> Array:
    """A weight scaled so that `x @ w.T` is of order one again."""
    return rng.standard_normal((num_outputs, num_inputs)) / np.sqrt(max(num_inputs, 1))


def token_lists(rng: np.random.Generator, lengths: Sequence[int], vocab_size: int) -> tuple[Array, Array]:
    """Distinct token ids per row, one after the other, and where each row begins (int32 [X], [R+1])."""
    rows = [rng.permutation(vocab_size)[:length] for length in lengths]
    tokens = np.concatenate([*rows, np.empty(0)]).astype(np.int32)
    return tokens, np.cumsum([0, *lengths]).astype(np.int32)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A filled KV cache and the tables of a ragged batch in it, as `paged_attention` takes them."""

    k_cache: Array
    v_cache: Array
    cu_seqlens_q: Array
    seqlens_k: Array
    block_tables: Array


def paged_batch(
    rng: np.random.Generator,
    sequences: Sequence[tuple[int, int]],
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> PagedBatch:
    """A batch of (number of queries, number of keys) sequences whose blocks lie scattered over the cache.

    Table entries that no sequence needs are -1; slots that no sequence owns hold values like the others, so
    that reading one shows.
    """
    counts = [-(-num_keys // block_size) for _, num_keys in sequences]
    shape = (sum(counts) + 2, num_kv_heads, block_size, head_dim)
    free = iter(rng.permutation(shape[0]))
    block_tables = np.full((len(sequences), max(counts, default=0) + 1), -1, np.int32)
    for row, count in enumerate(counts):
        block_tables[row, :count] = [next(free) for _ in range(count)]
    return PagedBatch(
        k_cache=normal(rng, *shape),
        v_cache=normal(rng, *shape),
        cu_seqlens_q=np.cumsum([0, *(num_queries for num_queries, _ in sequences)]).astype(np.int32),
        seqlens_k=np.array([num_keys for _, num_keys in sequences], np.int32),
        block_tables=block_tables,
    )
