"""Attention of queries to keys and values that lie beside them, without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from aethermind.ops.catalog._index_checks import check_heads
from aethermind.ops.catalog._sample_inputs import large_scores, normal
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.cost import Call, Cost, visible_pairs
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ATTENTION"]


def _reference(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    *leading, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads = k.shape[-3:-1]
    # [..., kv heads, query heads of each, tokens, head dim]
    grouped = q.reshape(*leading, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = np.moveaxis(grouped, -4, -2)
    keys, values = (np.swapaxes(x, -3, -2)[..., None, :, :] for x in (k, v))
    scores = queries @ np.swapaxes(keys, -2, -1) * scale
    if causal:
        position = np.arange(num_keys - num_queries, num_keys)[:, None]
        scores = np.where(np.arange(num_keys) <= position, scores, -np.inf)
    out = _softmax_or_zero(scores).astype(q.dtype, copy=False) @ values
    return np.moveaxis(out, -2, -4).reshape(q.shape)


def _by_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    """Each query alone, against the keys that it sees."""
    out = np.empty_like(q)
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    for row in range(num_queries):
        visible = max(num_keys - (num_queries - 1 - row), 0) if causal else num_keys
        keys, values = k[..., :visible, :, :], v[..., :visible, :, :]
        one = slice(row, row + 1)
        out[..., one, :, :] = _reference(q[..., one, :, :], keys, values, scale=scale, causal=False)
    return out


def _softmax_or_zero(scores: Array) -> Array:
    """Softmax over the keys; a query that sees none weighs none."""
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1)


def _term_magnitudes(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    return _reference(q, k, np.abs(v), scale=scale, causal=causal)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for leading, num_queries, num_keys, num_heads, num_kv_heads, head_dim in (
        ((), 5, 5, 4, 2, 64),
        ((), 1, 33, 7, 1, 64),
        ((), 17, 17, 3, 3, 10),
        ((), 0, 4, 2, 1, 8),
        ((), 3, 9, 4, 4, 80),
        ((2,), 7, 11, 14, 2, 16),
        ((0,), 2, 2, 2, 2, 8),
        ((1, 2), 4, 4, 2, 1, 8),
        ((), 1, 1, 1, 1, 2),
        ((), 6, 2, 2, 1, 8),
        ((), 2, 0, 2, 1, 8),
        ((), 3, 300, 4, 2, 16),
        ((), 130, 130, 2, 1, 8),
        ((), 1, 1500, 2, 1, 8),
    ):
        q = normal(rng, *leading, num_queries, num_heads, head_dim)
        k, v = (normal(rng, *leading, num_keys, num_kv_heads, head_dim) for _ in range(2))
        shape = "x".join(map(str, (*leading, num_queries, num_keys)))
        label = f"{shape}_H{num_heads}_K{num_kv_heads}_C{head_dim}"
        yield Sample(label, (q, k, v), {"scale": head_dim**-0.5})
        yield Sample(f"{label}_everything", (q, k, v), {"scale": head_dim**-0.5, "causal": False})
    for label, sign in (("scores_of_112", 1), ("scores_of_minus_112", -1)):  # e to such a power is no float32
        q, k = large_scores(rng, sign, 3, 70)
        yield Sample(label, (q, k, normal(rng, 70, 1, 2)), {"scale": 1.0})


def _cost(call: Call) -> Cost:
    *leading, num_queries, num_heads, head_dim = call.shape("q")
    num_keys = call.shape("k")[-3]
    pairs = num_queries * num_keys
    if call.attributes["causal"]:
        pairs = visible_pairs(min(num_queries, num_keys), num_keys)
    flops = 4 * prod(leading) * num_heads * head_dim * pairs
    return Cost(call.bytes_in("q", "k", "v"), call.bytes_out("out"), flops)


ATTENTION = Operator(
    schema=OperatorSchema.parse(
        """attention(q: F[..., T, H, C], k: F[..., S, K, C], v: F[..., S, K, C]; scale: float, causal: bool = True)
        -> (out: F[..., T, H, C])"""
    ),
    summary=(
        "softmax(q·kᵀ·scale)·v for every leading index; head h uses kv head h // (H/K). When causal, the last query "
        "stands at the last key and none sees keys behind it; one that sees no key gives zeros."
    ),
    reference=_reference,
    by_row=_by_row,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # Kernels may round the softmax weights to F before they meet the values.
    tolerances=accumulated(inner_roundings=1),
    cost=_cost,
    check=lambda _, shapes: check_heads(shapes["q"][-2], shapes["k"][-2]),
)
