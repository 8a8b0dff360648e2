"""Random inputs for the samples of several operators. Floats are float64, with magnitudes around 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aethermind.ops.operator import Array, Sample

__all__ = [
    "PagedBatch",
    "broadcast_pairs",
    "large_scores",
    "normal",
    "paged_attention_sample",
    "paged_batch",
    "same_shaped",
    "token_lists",
    "vectors",
    "weight",
]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Return standard normal activations."""
    return rng.standard_normal(shape)


def same_shaped(rng: np.random.Generator, num_inputs: int, draw: Callable[..., Array] = normal) -> Iterator[Sample]:
    """Yield samples of an elementwise operator whose inputs have one shape; `draw` has the signature of `normal`."""
    for shape in ((3, 7), (1, 33), (0, 8), (5,), (2, 3, 17), (16, 64), (300, 9), (33_001,)):
        yield Sample("x".join(map(str, shape)), tuple(draw(rng, *shape) for _ in range(num_inputs)))


def broadcast_pairs(rng: np.random.Generator, draw: Callable[..., Array] = normal) -> Iterator[Sample]:
    """Yield samples of a binary elementwise operator whose inputs have different shapes."""
    for a, b in (
        ((3, 7), (7,)),
        ((9, 9), (9,)),
        ((300, 1), (1, 33)),
        ((2, 3, 17), (3, 1)),
        ((5,), ()),
        ((1, 1), (4, 33)),
        ((16, 64), (16, 1)),
        ((1, 9), (70, 9)),
        ((2, 1, 5, 1, 3), (4, 1, 6, 3)),
        ((3, 2, 1, 2, 1, 20), (1, 2, 3, 1, 1, 20)),
        ((1, 33_001), (3, 1)),
        ((0, 8), (8,)),
        ((1, 8), (0, 1)),
    ):
        label = "_with_".join("x".join(map(str, shape)) or "scalar" for shape in (a, b))
        yield Sample(label, (draw(rng, *a), draw(rng, *b)))


def vectors(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of an operator that reduces or normalises the vectors of its only input."""
    for shape in (
        (3, 7), (1, 896), (0, 16), (5, 2, 80), (17, 33), (2, 1), (2, 0, 5), (11,), (300, 5), (2, 2080), (1, 33_001),
    ):  # fmt: skip
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape) * 2,))


def weight(rng: np.random.Generator, num_outputs: int, num_inputs: int) -> Array:
    """Return a weight [num_outputs, num_inputs] scaled so that `x @ w.T` has magnitudes around 1."""
    return rng.standard_normal((num_outputs, num_inputs)) / np.sqrt(max(num_inputs, 1))


def token_lists(rng: np.random.Generator, lengths: Sequence[int], vocab_size: int) -> tuple[Array, Array]:
    """Return distinct token ids per row, concatenated (int32 [X]), and the offset of each row (int32 [R+1])."""
    rows = [rng.permutation(vocab_size)[:length] for length in lengths]
    tokens = np.concatenate([*rows, np.empty(0)]).astype(np.int32)
    return tokens, np.cumsum([0, *lengths]).astype(np.int32)


def large_scores(
    rng: np.random.Generator, sign: int, num_queries: int, num_keys: int, size: int = 112
) -> tuple[Array, Array]:
    """Return queries [num_queries, 1, 2] and keys [num_keys, 1, 2] whose scores are `sign` · `size`, plus -1, 0 or 1.

    All elements are integers, which are exact in every dtype.
    """
    q = np.broadcast_to(np.array([sign * float(size), 1.0]), (num_queries, 1, 2)).copy()
    return q, np.stack([np.ones((num_keys, 1)), rng.integers(-1, 2, (num_keys, 1)).astype(np.float64)], axis=-1)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A filled KV cache and the tables of a ragged batch, as inputs of `paged_attention`."""

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
    unused: float | None = None,
) -> PagedBatch:
    """Return a batch of sequences, given as (number of queries, number of keys), with random blocks of the cache.

    Unused table entries are -1. Unused slots hold `unused`, or random values, so that a kernel that reads one fails.
    """
    counts = [-(-num_keys // block_size) for _, num_keys in sequences]
    shape = (sum(counts) + 2, num_kv_heads, block_size, head_dim)
    free = iter(rng.permutation(shape[0]))
    block_tables = np.full((len(sequences), max(counts, default=0) + 1), -1, np.int32)
    for row, count in enumerate(counts):
        block_tables[row, :count] = [next(free) for _ in range(count)]
    caches = normal(rng, *shape), normal(rng, *shape)
    if unused is not None:
        is_used = np.zeros((shape[0], block_size), bool)
        for blocks, (_, num_keys) in zip(block_tables, sequences, strict=True):
            used = np.repeat(blocks[: -(-num_keys // block_size)], block_size)[:num_keys]
            is_used[used, np.arange(num_keys) % block_size] = True
        for cache in caches:
            cache[~is_used[:, None].repeat(num_kv_heads, axis=1)] = unused
    return PagedBatch(
        k_cache=caches[0],
        v_cache=caches[1],
        cu_seqlens_q=np.cumsum([0, *(num_queries for num_queries, _ in sequences)]).astype(np.int32),
        seqlens_k=np.array([num_keys for _, num_keys in sequences], np.int32),
        block_tables=block_tables,
    )


def paged_attention_sample(
    rng: np.random.Generator,
    label: str,
    sequences: Sequence[tuple[int, int]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int,
    num_padding_rows: int = 0,
    unused: float | None = None,
) -> Sample:
    """Return a sample of `paged_attention` on a `paged_batch`, with padding rows after the last sequence."""
    batch = paged_batch(rng, sequences, num_kv_heads, head_dim, block_size, unused)
    q = normal(rng, batch.cu_seqlens_q[-1] + num_padding_rows, num_heads, head_dim)
    tables = (batch.cu_seqlens_q, batch.seqlens_k, batch.block_tables)
    inputs = (q, batch.k_cache, batch.v_cache, *tables, None, None)
    return Sample(label, inputs, {"scale": head_dim**-0.5, "window": window})
