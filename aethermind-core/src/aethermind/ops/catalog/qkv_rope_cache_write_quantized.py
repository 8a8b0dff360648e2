"""Everything between a layer's norm and its attention, where the cache holds codes with a scale for each row."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from aethermind.ops.catalog._index_checks import slots_of_cache
from aethermind.ops.catalog._quantized_rows import coded_caches, one_code
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.kv_cache_write_quantized import code_bytes
from aethermind.ops.catalog.qkv_rope_cache_write import QKV_ROPE_CACHE_WRITE, projected_heads
from aethermind.ops.cost import Call, Cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["QKV_ROPE_CACHE_WRITE_QUANTIZED"]


def _decompose(
    b: OpBuilder[Array],
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    b_q: Array | None,
    b_k: Array | None,
    b_v: Array | None,
    q_norm: Array | None,
    k_norm: Array | None,
    rope_table: Array,
    slot_mapping: Array,
    k_cache: Array,
    v_cache: Array,
    k_scale: Array,
    v_scale: Array,
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Array, ...]:
    weights, biases, norms = (w_q, w_k, w_v), (b_q, b_k, b_v), (q_norm, k_norm)
    q, k, v = projected_heads(b, x, weights, biases, norms, rope_table, num_heads, num_kv_heads, eps)
    return q, *b.op("kv_cache_write_quantized", k, v, slot_mapping, k_cache, v_cache, k_scale, v_scale)


def _term_magnitudes(*inputs: Array | None, num_heads: int, num_kv_heads: int, eps: float) -> tuple[Array, ...]:
    """Of codes: one of them, beside what their values' terms are in codes; of scales: their row's greatest terms."""
    *others, slot_mapping, k_codes, _, k_scale, v_scale = inputs
    assert k_codes is not None
    assert k_scale is not None
    assert v_scale is not None
    assert QKV_ROPE_CACHE_WRITE.term_magnitudes is not None
    caches = [np.zeros(k_codes.shape), np.zeros(k_codes.shape)]
    q, *values = QKV_ROPE_CACHE_WRITE.term_magnitudes(
        *others, slot_mapping, *caches, num_heads=num_heads, num_kv_heads=num_kv_heads, eps=eps
    )
    scales = [
        np.maximum(magnitudes.max(axis=-1, initial=0), scale)
        for magnitudes, scale in zip(values, (k_scale, v_scale), strict=True)
    ]
    return q, *(one_code(k_codes) for _ in values), *scales


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in QKV_ROPE_CACHE_WRITE.samples(rng):
        *others, k_cache, v_cache = sample.inputs
        for codes, caches in coded_caches(k_cache, v_cache):
            yield Sample(f"{sample.label}_{codes}", (*others, *caches), sample.attributes)


def _cost(call: Call) -> Cost:
    """The projections are counted; norms, rotations and rounding are small beside them."""
    num_tokens, head_dim = call.shape("x")[0], call.shape("k_cache")[3]
    rows = num_tokens * call.shape("w_k")[0] // max(head_dim, 1)
    num_weights = sum(prod(call.shape(name)) for name in ("w_q", "w_k", "w_v"))
    kept = ("k_cache", "v_cache", "k_scale", "v_scale")
    read = call.bytes_in(*(name for name in call.inputs if name not in kept))
    return Cost(read, call.bytes_out("q") + code_bytes(rows, head_dim), 2 * num_tokens * num_weights)


QKV_ROPE_CACHE_WRITE_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """qkv_rope_cache_write_quantized(x: F[T, D], w_q: W[Q, D], w_k: W[G, D], w_v: W[G, D],
        b_q: F[Q]?, b_k: F[G]?, b_v: F[G]?, q_norm: F[C]?, k_norm: F[C]?,
        rope_table: f32[T, C], slot_mapping: i64[T], k_cache: q8[N, K, P, C], v_cache: q8[N, K, P, C],
        k_scale: f32[N, K, P], v_scale: f32[N, K, P];
        num_heads: int, num_kv_heads: int, eps: float = 1e-6)
        -> (q: F[T, num_heads, C], k_out: q8[N, K, P, C] = k_cache, v_out: q8[N, K, P, C] = v_cache,
        k_scale_out: f32[N, K, P] = k_scale, v_scale_out: f32[N, K, P] = v_scale)"""
    ),
    summary="qkv_rope_cache_write where keys and values go to the cache as kv_cache_write_quantized writes them.",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=accumulated(inner_roundings=2),
    cost=_cost,
    check=slots_of_cache,
)
