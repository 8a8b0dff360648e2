"""Causal attention of a ragged batch over keys and values that lie in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import check_blocks
from aethermind.ops.catalog._sample_inputs import large_scores, normal, paged_attention_sample
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.cost import Call, Cost, visible_pairs
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["PAGED_ATTENTION"]


def _reference(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    *,
    scale: float,
    window: int,
) -> Array:
    out = np.zeros_like(q)
    for begin, end, num_keys, blocks in zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], seqlens_k, block_tables, strict=True):
        if begin < end:
            k = _gather(k_cache, blocks, num_keys).astype(q.dtype, copy=False)
            v = _gather(v_cache, blocks, num_keys).astype(q.dtype, copy=False)
            out[begin:end] = _attend(q[begin:end], k, v, scale, window)
    return out


def _by_row(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    *,
    scale: float,
    window: int,
) -> Array:
    """Each query alone against the keys that it sees."""
    out = np.zeros_like(q)
    for begin, end, num_keys, blocks in zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], seqlens_k, block_tables, strict=True):
        for row in range(begin, end):
            visible = num_keys - (end - 1 - row)
            k = _gather(k_cache, blocks, visible).astype(q.dtype, copy=False)
            v = _gather(v_cache, blocks, visible).astype(q.dtype, copy=False)
            out[row] = _attend(q[row : row + 1], k, v, scale, window)[0]
    return out


def _gather(cache: Array, blocks: Array, num_keys: int) -> Array:
    """The keys (or values) of one sequence in order of position: [K, num_keys, C]."""
    _, num_kv_heads, block_size, head_dim = cache.shape
    owned = cache[blocks[: -(-num_keys // block_size)]]
    return owned.transpose(1, 0, 2, 3).reshape(num_kv_heads, -1, head_dim)[:, :num_keys]


def _attend(q: Array, k: Array, v: Array, scale: float, window: int) -> Array:
    """One sequence: q [Q, H, C] against k and v [K, num_keys, C], all heads at once."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads, num_keys, _ = k.shape
    grouped = q.transpose(1, 0, 2).reshape(num_kv_heads, -1, num_queries, head_dim)
    scores = grouped @ k[:, None].transpose(0, 1, 3, 2) * scale
    position = np.arange(num_keys - num_queries, num_keys)[:, None]
    key = np.arange(num_keys)
    is_visible = (key <= position) & ((window <= 0) | (key > position - window))
    scores = np.where(is_visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights.astype(q.dtype, copy=False) @ v[:, None]
    return out.reshape(num_heads, num_queries, head_dim).transpose(1, 0, 2)


def _term_magnitudes(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    *,
    scale: float,
    window: int,
) -> Array:
    tables = (cu_seqlens_q, seqlens_k, block_tables)
    magnitudes = _reference(q, k_cache, np.abs(v_cache), *tables, scale=scale, window=window)
    magnitudes[cu_seqlens_q[-1] :] = np.inf
    return magnitudes


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    decode, prefill = [(1, 5), (1, 1), (1, 33)], [(5, 5), (17, 17)]
    mixed = [(1, 9), (7, 7), (4, 11), (1, 16), (3, 17)]
    for label, sequences, num_heads, num_kv_heads, head_dim, block_size, window in (
        ("prefill", prefill, 4, 2, 64, 16, 0),
        ("decode", decode, 7, 1, 64, 16, 0),
        ("mixed", mixed, 14, 2, 64, 16, 0),
        ("mixed_every_head_its_own", mixed, 7, 7, 8, 4, 0),
        ("mixed_block_size_1", mixed, 2, 1, 80, 1, 0),
        ("mixed_head_dim_128", mixed, 4, 1, 128, 16, 0),
        ("mixed_window", mixed, 4, 2, 8, 4, 3),
        ("prefill_window_1", prefill, 2, 2, 8, 4, 1),
        ("decode_window_beyond_keys", decode, 2, 1, 10, 16, 100),
        ("one_token", [(1, 1)], 1, 1, 2, 16, 0),
        ("sequence_without_queries", [(2, 4), (0, 6), (1, 3)], 2, 1, 8, 4, 0),
        ("no_sequences", [], 2, 1, 8, 4, 0),
        ("decode_long", [(1, 300), (1, 1500), (1, 64), (1, 129)], 4, 2, 16, 16, 0),
        ("decode_long_window", [(1, 300), (1, 1500), (1, 20)], 2, 1, 8, 16, 100),
        ("decode_long_block_size_1", [(1, 300), (1, 70)], 2, 1, 8, 1, 0),
        ("decode_long_block_size_64", [(1, 300), (1, 700)], 2, 1, 16, 64, 0),
        ("decode_40_sequences", [(1, 1 + 7 * one) for one in range(40)], 2, 1, 8, 16, 0),
        ("prefill_long", [(130, 130), (3, 300)], 2, 1, 16, 16, 0),
        ("prefill_300", [(300, 300)], 2, 2, 8, 16, 0),
        ("chunk_long", [(20, 1500), (1, 600), (9, 280)], 4, 1, 8, 16, 0),
        ("chunk_long_window", [(20, 1500), (70, 300), (1, 280)], 2, 1, 8, 16, 70),
    ):
        yield paged_attention_sample(rng, label, sequences, num_heads, num_kv_heads, head_dim, block_size, window)
    yield paged_attention_sample(rng, "padded", mixed, 2, 1, 8, 4, 0, num_padding_rows=3)
    late = [(1, 300), (5, 21), (1, 64), (33, 70)]
    for label, unused in (("nan", np.nan), ("inf", np.inf)):  # what the memory held before, perhaps
        yield paged_attention_sample(rng, f"unused_slots_{label}", mixed, 4, 2, 16, 16, 0, unused=unused)
        yield paged_attention_sample(rng, f"unused_slots_{label}_long", late, 2, 1, 64, 16, 0, unused=unused)
    yield paged_attention_sample(rng, "unused_slots_nan_window", late, 2, 1, 8, 4, 9, unused=np.nan)
    for label, sign, size in (
        ("scores_of_112", 1, 112),  # e to such a power is no float32
        ("scores_of_minus_112", -1, 112),
        ("equal_scores_of_16384", 1, 16384),
        ("equal_scores_of_minus_16384", -1, 16384),
    ):
        yield _with_large_scores(rng, label, sign, size)


def _with_large_scores(rng: np.random.Generator, label: str, sign: int, size: int) -> Sample:
    """A decode and a short prefill, keys in order in the blocks of a cache."""
    q, keys = large_scores(rng, sign, 6, 96, size)
    if label.startswith("equal"):  # so large, float32 has no place for differences
        keys[..., 1] = 1
    k_cache = keys.reshape(6, 16, 1, 2).transpose(0, 2, 1, 3).copy()
    tables = (np.array([0, 1, 6], np.int32), np.array([70, 9], np.int32))
    blocks = np.array([[3, 1, 4, 0, 5], [2, -1, -1, -1, -1]], np.int32)
    return Sample(label, (q, k_cache, normal(rng, *k_cache.shape), *tables, blocks), {"scale": 1.0, "window": 0})


def _cost(call: Call) -> Cost:
    """Of the caches only the keys and values that some query sees are read, once a sequence."""
    _, num_heads, head_dim = call.shape("q")
    num_kv_heads = call.shape("k_cache")[1]
    window = int(call.attributes["window"])
    pairs = sum(visible_pairs(*sequence, window) for sequence in call.sequences)
    seen = sum(min(keys, queries + window - 1) if window > 0 else keys for queries, keys in call.sequences if queries)
    itemsize = sum(call.inputs[name].dtype.itemsize for name in ("k_cache", "v_cache"))
    read = call.bytes_in("q", "cu_seqlens_q", "seqlens_k", "block_tables") + seen * num_kv_heads * head_dim * itemsize
    return Cost(read, call.bytes_out("out"), 4 * num_heads * head_dim * pairs)


PAGED_ATTENTION = Operator(
    schema=OperatorSchema.parse(
        """paged_attention(q: F[T, H, C], k_cache: F[N, K, P, C], v_cache: F[N, K, P, C],
        cu_seqlens_q: i32[S+1], seqlens_k: i32[S], block_tables: i32[S, M];
        scale: float, window: int = 0) -> (out: F[T, H, C])"""
    ),
    summary=(
        "softmax(q·kᵀ·scale)·v per sequence; its last query stands at its last key, and with a window "
        "only that many keys are seen. Head h uses kv head h // (H/K). Rows past cu_seqlens_q[S] are "
        "padding and may hold anything."
    ),
    reference=_reference,
    by_row=_by_row,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # Kernels may round the softmax weights to F before they meet the values.
    tolerances=accumulated(inner_roundings=1),
    gathered=frozenset({"k_cache", "v_cache"}),
    cost=_cost,
    check=check_blocks,
)
