"""Attention without a KV cache, and ALiBi."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from aethermind.ops.catalog._index_checks import check_heads
from aethermind.ops.catalog._sample_inputs import large_scores, normal
from aethermind.ops.operator import ONE_ROUNDING, Array, Call, Cost, Operator, Sample, accumulated, visible_pairs
from aethermind.ops.schema import OperatorSchema

__all__ = ["ALIBI", "ATTENTION", "alibi_slopes"]


def _attention_reference(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
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


def _attention_by_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    """Compute each query separately, over its visible keys."""
    out = np.empty_like(q)
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    for row in range(num_queries):
        visible = max(num_keys - (num_queries - 1 - row), 0) if causal else num_keys
        keys, values = k[..., :visible, :, :], v[..., :visible, :, :]
        one = slice(row, row + 1)
        out[..., one, :, :] = _attention_reference(q[..., one, :, :], keys, values, scale=scale, causal=False)
    return out


def _softmax_or_zero(scores: Array) -> Array:
    """Return the softmax over the keys; zeros for a query without visible keys."""
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1)


def _attention_term_magnitudes(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    return _attention_reference(q, k, np.abs(v), scale=scale, causal=causal)


def _attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    for label, sign in (("scores_of_112", 1), ("scores_of_minus_112", -1)):  # exp() of these overflows float32
        q, k = large_scores(rng, sign, 3, 70)
        yield Sample(label, (q, k, normal(rng, 70, 1, 2)), {"scale": 1.0})


def _attention_cost(call: Call) -> Cost:
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
        "has the position of the last key and later keys are masked; a query without visible keys gives zeros."
    ),
    reference=_attention_reference,
    by_row=_attention_by_row,
    samples=_attention_samples,
    term_magnitudes=_attention_term_magnitudes,
    # Kernels may round the softmax weights to F before the product with the values.
    tolerances=accumulated(inner_roundings=1),
    cost=_attention_cost,
    check=lambda _, shapes: check_heads(shapes["q"][-2], shapes["k"][-2]),
)
"""Scaled dot-product attention over keys and values that are activations, as in encoders."""


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> Array:
    """Return the slope of each head by the rule of the ALiBi paper (float64 [num_heads]).

    The first n heads, n being the largest power of two, have the slopes 2^(-max_bias/n), its square, and so on to
    2^-max_bias. The other heads have every second slope of the sequence for 2 · n heads.
    """
    power = 1 << (num_heads.bit_length() - 1)
    others = _slope_sequence(2 * power, max_bias)[::2][: num_heads - power]
    return np.concatenate([_slope_sequence(power, max_bias), others])


def _slope_sequence(num_heads: int, max_bias: float) -> Array:
    return 2.0 ** (-max_bias / num_heads * np.arange(1, num_heads + 1))


def _alibi_reference(scores: Array, slopes: Array) -> Array:
    return scores + _alibi_bias(scores, slopes)


def _alibi_bias(scores: Array, slopes: Array) -> Array:
    num_queries, num_keys = scores.shape[-2:]
    position = np.arange(num_keys - num_queries, num_keys)[:, None]
    distance = (np.arange(num_keys) - position).astype(scores.dtype)
    return slopes[:, None, None] * distance


def _alibi_term_magnitudes(scores: Array, slopes: Array) -> Array:
    # Masked scores remain exactly -inf.
    return np.abs(np.where(np.isfinite(scores), scores, 0)) + np.abs(_alibi_bias(scores, slopes))


def _alibi_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for leading, num_heads, num_queries, num_keys in (
        ((), 4, 3, 7),
        ((), 1, 1, 33),
        ((), 12, 5, 5),
        ((), 7, 0, 4),
        ((2,), 3, 17, 19),
        ((0,), 2, 4, 4),
        ((), 2, 20, 300),
        ((), 1, 130, 130),
    ):
        label = "x".join(map(str, (*leading, num_heads, num_queries, num_keys)))
        yield Sample(label, (normal(rng, *leading, num_heads, num_queries, num_keys), alibi_slopes(num_heads)))
    masked = np.where(np.tri(4, dtype=bool), normal(rng, 2, 4, 4), -np.inf)
    yield Sample("masked", (masked, alibi_slopes(2)))


ALIBI = Operator(
    schema=OperatorSchema.parse("alibi(scores: F[..., H, Q, S], slopes: f32[H]) -> (out: F[..., H, Q, S] ~ scores)"),
    summary="scores + slopes[h] * (key position - query position); the last query has the position of the last key.",
    reference=_alibi_reference,
    samples=_alibi_samples,
    term_magnitudes=_alibi_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""ALiBi (Press et al. 2022, arXiv:2108.12409): a bias of attention scores, linear in the distance of key and query."""
