"""Causal attention of a ragged batch over a paged cache of codes with a scale for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from aethermind.ops.catalog._index_checks import check_blocks
from aethermind.ops.catalog._quantized_rows import coded_caches, dequantize_rows
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.kv_cache_write_quantized import code_bytes
from aethermind.ops.catalog.paged_attention import PAGED_ATTENTION
from aethermind.ops.cost import Call, Cost, visible_pairs
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["PAGED_ATTENTION_QUANTIZED"]


def _over_values(of_floats: Callable[..., Array]) -> Callable[..., Array]:
    """The same function of a cache of codes: of the blocks that some sequence has, their values."""

    def of_codes(
        q: Array,
        k_cache: Array,
        v_cache: Array,
        cu_seqlens_q: Array,
        seqlens_k: Array,
        block_tables: Array,
        k_scale: Array,
        v_scale: Array,
        *,
        scale: float,
        window: int,
    ) -> Array:
        used, tables = np.unique(block_tables, return_inverse=True)
        used = np.clip(used, 0, len(k_cache) - 1)  # entries that no sequence needs may hold anything
        k, v = (
            dequantize_rows(codes[used], scales[used], q.dtype)
            for codes, scales in ((k_cache, k_scale), (v_cache, v_scale))
        )
        tables = tables.reshape(block_tables.shape).astype(np.int32)
        return of_floats(q, k, v, cu_seqlens_q, seqlens_k, tables, scale=scale, window=window)

    return of_codes


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in PAGED_ATTENTION.samples(rng):
        q, k_cache, v_cache, *tables = sample.inputs
        for codes, (k_codes, v_codes, *scales) in coded_caches(k_cache, v_cache):
            yield Sample(f"{sample.label}_{codes}", (q, k_codes, v_codes, *tables, *scales), sample.attributes)


def _cost(call: Call) -> Cost:
    """Of the caches only the codes and scales that some query sees are read, once a sequence."""
    _, num_heads, head_dim = call.shape("q")
    num_kv_heads, window = call.shape("k_cache")[1], int(call.attributes["window"])
    pairs = sum(visible_pairs(*sequence, window) for sequence in call.sequences)
    seen = sum(min(keys, queries + window - 1) if window > 0 else keys for queries, keys in call.sequences if queries)
    read = call.bytes_in("q", "cu_seqlens_q", "seqlens_k", "block_tables") + code_bytes(seen * num_kv_heads, head_dim)
    return Cost(read, call.bytes_out("out"), 4 * num_heads * head_dim * pairs)


assert PAGED_ATTENTION.reference is not None
assert PAGED_ATTENTION.by_row is not None
assert PAGED_ATTENTION.term_magnitudes is not None
PAGED_ATTENTION_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """paged_attention_quantized(q: F[T, H, C], k_cache: q8[N, K, P, C], v_cache: q8[N, K, P, C],
        cu_seqlens_q: i32[S+1], seqlens_k: i32[S], block_tables: i32[S, M],
        k_scale: f32[N, K, P], v_scale: f32[N, K, P];
        scale: float, window: int = 0) -> (out: F[T, H, C])"""
    ),
    summary="paged_attention where a key or value is its codes times its scale.",
    reference=_over_values(PAGED_ATTENTION.reference),
    by_row=_over_values(PAGED_ATTENTION.by_row),
    samples=_samples,
    term_magnitudes=_over_values(PAGED_ATTENTION.term_magnitudes),
    # Kernels may round the softmax weights, times the values' scales, to F before they meet the codes.
    tolerances=accumulated(inner_roundings=1),
    gathered=frozenset({"k_cache", "v_cache", "k_scale", "v_scale"}),
    cost=_cost,
    check=check_blocks,
)
