"""QKV projection, norm per head, RoPE and KV cache write, fused into one operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from aethermind.ops.catalog._index_checks import check_slots
from aethermind.ops.catalog._quantized_rows import one_code_magnitudes, quantized_caches
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog.kv_cache_write import KV_CACHE_WRITE, quantized_bytes, random_slots
from aethermind.ops.catalog.matrix_products import linear_magnitudes
from aethermind.ops.catalog.rope import check_rotary_dim, narrow_table_extension, random_rope_table, rope_magnitudes
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample, accumulated
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["QKV_ROPE_CACHE_WRITE", "QKV_ROPE_CACHE_WRITE_QUANTIZED", "head_magnitudes", "project_heads"]


def project_heads(
    b: OpBuilder[Array],
    x: Array,
    weights: tuple[Array, Array, Array],
    biases: tuple[Array | None, Array | None, Array | None],
    norms: tuple[Array | None, Array | None],
    rope_table: Array,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    weight_offset: float,
) -> tuple[Array, Array, Array]:
    """Return queries, keys and values [T, heads, C], computed by smaller operators; q and k are normed and rotated."""
    counts = (num_heads, num_kv_heads, num_kv_heads)
    q, k, v = (
        b.op("split_heads", b.op("linear", x, weight, bias), num_heads=count)
        for weight, bias, count in zip(weights, biases, counts, strict=True)
    )
    if norms[0] is not None:
        q = b.op("rms_norm", q, norms[0], eps=eps, weight_offset=weight_offset)
    if norms[1] is not None:
        k = b.op("rms_norm", k, norms[1], eps=eps, weight_offset=weight_offset)
    return b.op("rope", q, rope_table), b.op("rope", k, rope_table), v


def _qkv_decompose(
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
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    weight_offset: float,
) -> tuple[Array, Array, Array]:
    weights, biases, norms = (w_q, w_k, w_v), (b_q, b_k, b_v), (q_norm, k_norm)
    q, k, v = project_heads(b, x, weights, biases, norms, rope_table, num_heads, num_kv_heads, eps, weight_offset)
    k_out, v_out = b.op("kv_cache_write", k, v, slot_mapping, k_cache, v_cache)
    return q, k_out, v_out


def _qkv_term_magnitudes(
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
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    weight_offset: float,
) -> tuple[Array, Array, Array]:
    q_factor, k_factor = (None if norm is None else weight_offset + norm for norm in (q_norm, k_norm))
    q = rope_magnitudes(head_magnitudes(x, w_q, b_q, q_factor, num_heads, eps), rope_table)
    k = rope_magnitudes(head_magnitudes(x, w_k, b_k, k_factor, num_kv_heads, eps), rope_table)
    v = head_magnitudes(x, w_v, b_v, None, num_kv_heads, eps)
    assert KV_CACHE_WRITE.reference is not None
    k_out, v_out = KV_CACHE_WRITE.reference(k, v, slot_mapping, np.abs(k_cache), np.abs(v_cache))
    return q, k_out, v_out


def head_magnitudes(
    x: Array, weight: Array, bias: Array | None, norm: Array | None, num_heads: int, eps: float
) -> Array:
    """Return the term magnitudes [T, heads, C] of a projection to heads with a norm of each head (None: without).

    They bound how an error that is relative to the terms of the projection changes the normed result.
    """
    shape = (len(x), num_heads, len(weight) // num_heads)
    magnitudes = linear_magnitudes(x, weight, bias).reshape(shape)
    if norm is None:
        return magnitudes
    values = (x @ weight.T + (0 if bias is None else bias)).reshape(shape)
    mean_square = np.mean(values * values, axis=-1, keepdims=True) + eps
    through_mean = np.abs(values) * np.mean(np.abs(values) * magnitudes, axis=-1, keepdims=True) / mean_square
    return (magnitudes + through_mean) / np.sqrt(mean_square) * np.abs(norm)


def _qkv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, num_tokens, hidden_size, num_heads, num_kv_heads, head_dim, block_size, num_skipped in (
        ("mha", 3, 7, 2, 2, 8, 4, 0),
        ("gqa_decode", 1, 33, 7, 1, 64, 16, 0),
        ("gqa", 9, 48, 4, 2, 10, 16, 2),
        ("many_kv_heads", 5, 20, 14, 7, 8, 1, 0),
        ("head_dim_80", 17, 31, 2, 1, 80, 16, 1),
        ("head_dim_128", 2, 16, 2, 1, 128, 16, 0),
        ("prefill", 37, 40, 3, 1, 24, 16, 2),
        ("empty", 0, 8, 2, 1, 8, 4, 0),
        ("whole_vectors", 40, 64, 4, 2, 64, 16, 3),
        ("long", 300, 9, 3, 1, 8, 16, 5),
        ("many_inputs", 3, 2080, 2, 1, 8, 16, 0),
    ):
        num_blocks = -(-num_tokens // block_size) + 1
        size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        x = normal(rng, num_tokens, hidden_size)
        weights = [weight(rng, rows, hidden_size) for rows in (size, kv_size, kv_size)]
        biases = [normal(rng, rows) for rows in (size, kv_size, kv_size)]
        norms = [normal(rng, head_dim) for _ in range(2)]
        cache_inputs = (
            random_rope_table(rng, num_tokens, head_dim),
            random_slots(rng, num_tokens, num_blocks * block_size, num_skipped),
            normal(rng, num_blocks, num_kv_heads, block_size, head_dim),
            normal(rng, num_blocks, num_kv_heads, block_size, head_dim),
        )
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
        yield Sample(f"{label}_bias", (x, *weights, *biases, None, None, *cache_inputs), heads)
        if label in ("gqa", "head_dim_80", "head_dim_128", "whole_vectors"):
            narrow = (random_rope_table(rng, num_tokens, head_dim // 4 * 2 - 2), *cache_inputs[1:])
            yield Sample(f"{label}_partial", (x, *weights, *biases, *norms, *narrow), heads)
        yield Sample(f"{label}_norm", (x, *weights, None, None, None, *norms, *cache_inputs), {**heads, "eps": 1e-5})
        if label in ("gqa", "head_dim_80", "prefill"):
            offset = {**heads, "weight_offset": 1.0}
            yield Sample(f"{label}_norm_offset", (x, *weights, None, None, None, *norms, *cache_inputs), offset)


def _check_slots_and_table(arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    check_slots(arrays, shapes)
    check_rotary_dim(shapes["k_cache"][3], shapes["rope_table"][1])


def _qkv_cost(call: Call) -> Cost:
    """Count the operations of the projections only; those of norms and rotations are few in comparison."""
    num_tokens = call.shape("x")[0]
    num_elements = num_tokens * call.shape("w_k")[0]
    cache_bytes = num_elements * sum(call.inputs[name].dtype.itemsize for name in ("k_cache", "v_cache"))
    num_weights = sum(prod(call.shape(name)) for name in ("w_q", "w_k", "w_v"))
    read = call.bytes_in(*(name for name in call.inputs if name not in ("k_cache", "v_cache")))
    return Cost(read, call.bytes_out("q") + cache_bytes, 2 * num_tokens * num_weights)


QKV_ROPE_CACHE_WRITE = Operator(
    schema=OperatorSchema.parse(
        """qkv_rope_cache_write(x: F[T, D], w_q: W[Q, D], w_k: W[G, D], w_v: W[G, D],
        b_q: F[Q]?, b_k: F[G]?, b_v: F[G]?, q_norm: F[C]?, k_norm: F[C]?,
        rope_table: f32[T, R], slot_mapping: i64[T], k_cache: F[N, K, P, C], v_cache: F[N, K, P, C];
        num_heads: int, num_kv_heads: int, eps: float = 1e-6, weight_offset: float = 0.0)
        -> (q: F[T, num_heads, C], k_out: F[N, K, P, C] = k_cache, v_out: F[N, K, P, C] = v_cache)"""
    ),
    summary=(
        "q = rope(norm(x @ w_q.T + b_q)) for each head. k, computed likewise, and v, without norm and rope, are "
        "written to their slots of the cache. A norm is an rms_norm with weight_offset, left out if its weight is "
        "absent; a table narrower than a head rotates its first R elements (see rope)."
    ),
    decompose=_qkv_decompose,
    samples=_qkv_samples,
    term_magnitudes=_qkv_term_magnitudes,
    # The projection and the head norm may be rounded before the rotation; its result is rounded, too.
    tolerances=accumulated(inner_roundings=2),
    cost=_qkv_cost,
    check=_check_slots_and_table,
    additions=("weight_offset",),
    extension=lambda types: narrow_table_extension(types["k_cache"], types["rope_table"]),
)
"""Everything that a layer computes between its input norm and its attention, as one fused operator."""


def _quantized_decompose(
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
    weight_offset: float,
) -> tuple[Array, ...]:
    weights, biases, norms = (w_q, w_k, w_v), (b_q, b_k, b_v), (q_norm, k_norm)
    q, k, v = project_heads(b, x, weights, biases, norms, rope_table, num_heads, num_kv_heads, eps, weight_offset)
    return q, *b.op("kv_cache_write_quantized", k, v, slot_mapping, k_cache, v_cache, k_scale, v_scale)


def _quantized_term_magnitudes(
    *inputs: Array | None, num_heads: int, num_kv_heads: int, eps: float, weight_offset: float
) -> tuple[Array, ...]:
    """Return magnitudes that accept neighbouring codes, and for a scale the largest magnitude of its row."""
    *others, slot_mapping, k_codes, _, k_scale, v_scale = inputs
    assert k_codes is not None
    assert k_scale is not None
    assert v_scale is not None
    assert QKV_ROPE_CACHE_WRITE.term_magnitudes is not None
    caches = [np.zeros(k_codes.shape), np.zeros(k_codes.shape)]
    q, *values = QKV_ROPE_CACHE_WRITE.term_magnitudes(
        *others,
        slot_mapping,
        *caches,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        eps=eps,
        weight_offset=weight_offset,
    )
    scales = [
        np.maximum(magnitudes.max(axis=-1, initial=0), scale)
        for magnitudes, scale in zip(values, (k_scale, v_scale), strict=True)
    ]
    return q, *(one_code_magnitudes(k_codes) for _ in values), *scales


def _quantized_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in QKV_ROPE_CACHE_WRITE.samples(rng):
        *others, k_cache, v_cache = sample.inputs
        for codes, caches in quantized_caches(k_cache, v_cache):
            yield Sample(f"{sample.label}_{codes}", (*others, *caches), sample.attributes)


def _quantized_cost(call: Call) -> Cost:
    """Count the operations of the projections only; those of norms, rotations and rounding are few in comparison."""
    num_tokens, head_dim = call.shape("x")[0], call.shape("k_cache")[3]
    rows = num_tokens * call.shape("w_k")[0] // max(head_dim, 1)
    num_weights = sum(prod(call.shape(name)) for name in ("w_q", "w_k", "w_v"))
    caches = ("k_cache", "v_cache", "k_scale", "v_scale")
    read = call.bytes_in(*(name for name in call.inputs if name not in caches))
    return Cost(read, call.bytes_out("q") + quantized_bytes(rows, head_dim), 2 * num_tokens * num_weights)


QKV_ROPE_CACHE_WRITE_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """qkv_rope_cache_write_quantized(x: F[T, D], w_q: W[Q, D], w_k: W[G, D], w_v: W[G, D],
        b_q: F[Q]?, b_k: F[G]?, b_v: F[G]?, q_norm: F[C]?, k_norm: F[C]?,
        rope_table: f32[T, R], slot_mapping: i64[T], k_cache: q8[N, K, P, C], v_cache: q8[N, K, P, C],
        k_scale: f32[N, K, P], v_scale: f32[N, K, P];
        num_heads: int, num_kv_heads: int, eps: float = 1e-6, weight_offset: float = 0.0)
        -> (q: F[T, num_heads, C], k_out: q8[N, K, P, C] = k_cache, v_out: q8[N, K, P, C] = v_cache,
        k_scale_out: f32[N, K, P] = k_scale, v_scale_out: f32[N, K, P] = v_scale)"""
    ),
    summary="qkv_rope_cache_write with a quantised cache: keys and values are written as by kv_cache_write_quantized.",
    decompose=_quantized_decompose,
    samples=_quantized_samples,
    term_magnitudes=_quantized_term_magnitudes,
    tolerances=accumulated(inner_roundings=2),
    cost=_quantized_cost,
    check=_check_slots_and_table,
    additions=("weight_offset",),
    extension=lambda types: narrow_table_extension(types["k_cache"], types["rope_table"]),
)
"""`qkv_rope_cache_write` for a KV cache of 8-bit codes with a scale per row."""
