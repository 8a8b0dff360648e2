"""Attention of a ragged batch over a paged KV cache, of floats or quantised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from aethermind.ops.catalog._index_checks import FREED_KEYS_MULTIPLE, check_blocks
from aethermind.ops.catalog._quantized_rows import dequantize_rows, quantized_caches
from aethermind.ops.catalog._sample_inputs import large_scores, normal, paged_attention_sample
from aethermind.ops.catalog.kv_cache_write import quantized_bytes
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample, accumulated, visible_pairs
from aethermind.ops.schema import OperatorSchema

__all__ = ["PAGED_ATTENTION", "PAGED_ATTENTION_QUANTIZED"]


def _paged_attention_reference(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    sinks: Array | None,
    slopes: Array | None,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> Array:
    rules = _ScoreRules(scale, window, softcap, sinks, slopes)
    out = np.zeros_like(q)
    for begin, end, num_keys, blocks in zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], seqlens_k, block_tables, strict=True):
        if begin < end:
            first_visible = max(num_keys - (end - begin) - window + 1, 0) if window > 0 else 0
            k, v = (_gather(cache, blocks, num_keys, first_visible, q.dtype) for cache in (k_cache, v_cache))
            out[begin:end] = _attend(q[begin:end], k, v, rules)
    return out


def _paged_attention_by_row(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    sinks: Array | None,
    slopes: Array | None,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> Array:
    """Compute each query separately, over its visible keys."""
    rules = _ScoreRules(scale, window, softcap, sinks, slopes)
    out = np.zeros_like(q)
    for begin, end, num_keys, blocks in zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], seqlens_k, block_tables, strict=True):
        for row in range(begin, end):
            num_visible = num_keys - (end - 1 - row)
            first_visible = max(num_visible - window, 0) if window > 0 else 0
            k, v = (_gather(cache, blocks, num_visible, first_visible, q.dtype) for cache in (k_cache, v_cache))
            out[row] = _attend(q[row : row + 1], k, v, rules)[0]
    return out


def _gather(cache: Array, blocks: Array, num_keys: int, first_visible: int, dtype: np.dtype[Any]) -> Array:
    """Return the keys (or values) of one sequence in order of position: [K, num_keys, C].

    Keys before `first_visible` are 0, because their blocks may be freed and used by another sequence.
    """
    _, num_kv_heads, block_size, head_dim = cache.shape
    gathered = cache[np.maximum(blocks[: -(-num_keys // block_size)], 0)]
    rows = gathered.transpose(1, 0, 2, 3).reshape(num_kv_heads, -1, head_dim)[:, :num_keys].astype(dtype, copy=False)
    if first_visible:
        rows = rows.copy()
        rows[:, :first_visible] = 0
    return rows


@dataclass(frozen=True, slots=True)
class _ScoreRules:
    """The attributes and optional inputs of `paged_attention` that say how scores become softmax weights."""

    scale: float
    window: int
    softcap: float
    sinks: Array | None
    slopes: Array | None


def _attend(q: Array, k: Array, v: Array, rules: _ScoreRules) -> Array:
    """Compute the attention of one sequence: q [Q, H, C] over k and v [K, num_keys, C]."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads, num_keys, _ = k.shape
    grouped = q.transpose(1, 0, 2).reshape(num_kv_heads, -1, num_queries, head_dim)
    per_head = (num_kv_heads, -1, 1, 1)
    scores = grouped @ k[:, None].transpose(0, 1, 3, 2) * rules.scale
    position = np.arange(num_keys - num_queries, num_keys)[:, None]
    key = np.arange(num_keys)
    if rules.softcap > 0:
        scores = rules.softcap * np.tanh(scores / rules.softcap)
    if rules.slopes is not None:
        scores = scores + rules.slopes.reshape(per_head).astype(scores.dtype) * (key - position)
    is_visible = (key <= position) & ((rules.window <= 0) | (key > position - rules.window))
    scores = np.where(is_visible, scores, -np.inf)
    maximum = scores.max(axis=-1, keepdims=True)
    if rules.sinks is None:
        weights = np.exp(scores - maximum)
        weights /= weights.sum(axis=-1, keepdims=True)
    else:
        sinks = rules.sinks.reshape(per_head).astype(scores.dtype)
        maximum = np.maximum(maximum, sinks)
        weights = np.exp(scores - maximum)
        weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks - maximum)
    out = weights.astype(q.dtype, copy=False) @ v[:, None]
    return out.reshape(num_heads, num_queries, head_dim).transpose(1, 0, 2)


def _paged_attention_term_magnitudes(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    sinks: Array | None,
    slopes: Array | None,
    **attributes: Any,
) -> Array:
    tables = (cu_seqlens_q, seqlens_k, block_tables)
    magnitudes = _paged_attention_reference(q, k_cache, np.abs(v_cache), *tables, sinks, slopes, **attributes)
    magnitudes[cu_seqlens_q[-1] :] = np.inf
    return magnitudes


_DECODE, _PREFILL = [(1, 5), (1, 1), (1, 33)], [(5, 5), (17, 17)]
_MIXED = [(1, 9), (7, 7), (4, 11), (1, 16), (3, 17)]
_LATE = [(1, 300), (5, 21), (1, 64), (33, 70)]
"""Sequences of samples as (number of queries, number of keys)."""


def _paged_attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    decode, prefill, mixed = _DECODE, _PREFILL, _MIXED
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
        ("decode_40_sequences", [(1, 1 + 7 * _) for _ in range(40)], 2, 1, 8, 16, 0),
        ("prefill_long", [(130, 130), (3, 300)], 2, 1, 16, 16, 0),
        ("prefill_300", [(300, 300)], 2, 2, 8, 16, 0),
        ("chunk_long", [(20, 1500), (1, 600), (9, 280)], 4, 1, 8, 16, 0),
        ("chunk_long_window", [(20, 1500), (70, 300), (1, 280)], 2, 1, 8, 16, 70),
    ):
        yield paged_attention_sample(rng, label, sequences, num_heads, num_kv_heads, head_dim, block_size, window)
    for label, sequences, block_size in (
        ("freed_decodes", [(1, 700), (1, 300), (1, 40)], 16),
        ("freed_decodes_long", [(1, 1500), (1, 1001)], 64),
        ("freed_chunks", [(20, 700), (70, 411), (300, 601), (1, 280), (3, 5)], 16),
        ("freed_block_size_1", [(1, 300), (9, 277)], 1),
    ):
        sample = paged_attention_sample(rng, label, sequences, 4, 2, 16, block_size, 70, unused=np.nan)
        yield _with_freed_blocks(sample, block_size)
    yield paged_attention_sample(rng, "padded", mixed, 2, 1, 8, 4, 0, num_padding_rows=3)
    yield from _unwritten_slot_samples(rng)
    for label, sign, size in (
        ("scores_of_112", 1, 112),  # exp() of these overflows float32
        ("scores_of_minus_112", -1, 112),
        ("equal_scores_of_16384", 1, 16384),
        ("equal_scores_of_minus_16384", -1, 16384),
    ):
        yield _with_large_scores(rng, label, sign, size)
    yield from _transformed_score_samples(rng)


def _unwritten_slot_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples whose unused slots hold NaN or infinity, as uninitialised memory may."""
    for label, unused in (("nan", np.nan), ("inf", np.inf)):
        yield paged_attention_sample(rng, f"unused_slots_{label}", _MIXED, 4, 2, 16, 16, 0, unused=unused)
        yield paged_attention_sample(rng, f"unused_slots_{label}_long", _LATE, 2, 1, 64, 16, 0, unused=unused)
    yield paged_attention_sample(rng, "unused_slots_nan_window", _LATE, 2, 1, 8, 4, 9, unused=np.nan)


def _transformed_score_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples with soft caps, sinks and slopes."""
    for label, sequences, num_heads, num_kv_heads, head_dim, block_size, window in (
        ("mixed", _MIXED, 14, 2, 64, 16, 0),
        ("prefill", _PREFILL, 4, 2, 64, 16, 0),
        ("decode_long_window", [(1, 300), (1, 1500), (1, 20)], 4, 2, 8, 16, 100),
        ("chunk_long", [(20, 1500), (1, 600), (9, 280)], 4, 1, 80, 16, 0),
    ):
        plain = paged_attention_sample(rng, label, sequences, num_heads, num_kv_heads, head_dim, block_size, window)
        sharper = {**plain.attributes, "scale": 4 * head_dim**-0.5}
        sinks, slopes = normal(rng, num_heads), 2.0 ** -np.arange(1.0, num_heads + 1)
        for name, extra, attributes in (
            ("softcap", (None, None), {"softcap": 2.0}),
            ("sinks", (sinks, None), {}),
            ("slopes", (None, slopes), {}),
            ("softcap_sinks_slopes", (sinks, slopes), {"softcap": 5.0}),
        ):
            yield Sample(f"{label}_{name}", (*plain.inputs[:-2], *extra), {**sharper, **attributes})
    plain = paged_attention_sample(rng, "unused_slots_nan", _LATE, 4, 2, 16, 16, 0, unused=np.nan)
    extra = (np.full(4, 20.0), np.full(4, 0.5))  # a sink far above all scores
    yield Sample(
        "unused_slots_nan_softcap_sinks_slopes", (*plain.inputs[:-2], *extra), {**plain.attributes, "softcap": 1.0}
    )


def _with_freed_blocks(sample: Sample, block_size: int) -> Sample:
    """Return a sample with a window in which the blocks that may be freed are freed: table entries -1, contents NaN."""
    q, k_cache, v_cache, cu_seqlens_q, num_keys, tables = (np.array(array) for array in sample.inputs[:6])
    for sequence, num_queries in enumerate(np.diff(cu_seqlens_q)):
        first_visible = max(num_keys[sequence] - num_queries - int(sample.attributes["window"]) + 1, 0)
        num_freed = first_visible // FREED_KEYS_MULTIPLE * FREED_KEYS_MULTIPLE // block_size
        freed = tables[sequence, :num_freed]
        k_cache[freed] = v_cache[freed] = np.nan
        freed[:] = -1
    inputs = (q, k_cache, v_cache, cu_seqlens_q, num_keys, tables, *sample.inputs[6:])
    return Sample(sample.label, inputs, sample.attributes)


def _with_large_scores(rng: np.random.Generator, label: str, sign: int, size: int) -> Sample:
    """Return a decode and a short prefill whose scores are `sign` · `size`, plus small differences."""
    q, keys = large_scores(rng, sign, 6, 96, size)
    if label.startswith("equal"):  # at this magnitude float32 cannot represent the differences
        keys[..., 1] = 1
    k_cache = keys.reshape(6, 16, 1, 2).transpose(0, 2, 1, 3).copy()
    tables = (np.array([0, 1, 6], np.int32), np.array([70, 9], np.int32))
    blocks = np.array([[3, 1, 4, 0, 5], [2, -1, -1, -1, -1]], np.int32)
    inputs = (q, k_cache, normal(rng, *k_cache.shape), *tables, blocks, None, None)
    return Sample(label, inputs, {"scale": 1.0, "window": 0})


def _paged_attention_cost(call: Call) -> Cost:
    """Count one read of the keys and values that are visible to some query of their sequence."""
    _, num_heads, head_dim = call.shape("q")
    num_kv_heads = call.shape("k_cache")[1]
    window = int(call.attributes["window"])
    pairs = sum(visible_pairs(*sequence, window) for sequence in call.sequences)
    itemsize = sum(call.inputs[name].dtype.itemsize for name in ("k_cache", "v_cache"))
    read = (
        call.bytes_in("q", "cu_seqlens_q", "seqlens_k", "block_tables", "sinks", "slopes")
        + _num_visible_keys(call) * num_kv_heads * head_dim * itemsize
    )
    return Cost(read, call.bytes_out("out"), 4 * num_heads * head_dim * pairs)


def _num_visible_keys(call: Call) -> int:
    """Return the number of keys that are visible to some query of their sequence, in all sequences together."""
    window = int(call.attributes["window"])
    return sum(min(keys, queries + window - 1) if window > 0 else keys for queries, keys in call.sequences if queries)


PAGED_ATTENTION = Operator(
    schema=OperatorSchema.parse(
        """paged_attention(q: F[T, H, C], k_cache: F[N, K, P, C], v_cache: F[N, K, P, C],
        cu_seqlens_q: i32[S+1], seqlens_k: i32[S], block_tables: i32[S, M], sinks: f32[H]?, slopes: f32[H]?;
        scale: float, window: int = 0, softcap: float = 0.0) -> (out: F[T, H, C])"""
    ),
    summary=(
        "Causal softmax(q·kᵀ·scale)·v of each sequence, whose last query has the position of its last key; with "
        "window > 0 a query sees only its last `window` keys. Head h uses kv head h // (H/K). A softcap above 0 turns "
        "scores s into softcap·tanh(s/softcap); then slopes[h]·(key position - query position) is added (ALiBi); "
        "sinks[h] is a score in the softmax's denominator only. Rows past cu_seqlens_q[S] are padding; their output is "
        "undefined. A table entry may be -1 if its block ends before the first key that the sequence's first query "
        "sees, rounded down to a multiple of 128: such blocks are not read. The engine writes another block of the "
        "sequence there."
    ),
    reference=_paged_attention_reference,
    by_row=_paged_attention_by_row,
    samples=_paged_attention_samples,
    term_magnitudes=_paged_attention_term_magnitudes,
    # Kernels may round the softmax weights to F before the product with the values.
    tolerances=accumulated(inner_roundings=1),
    gathered=frozenset({"k_cache", "v_cache"}),
    cost=_paged_attention_cost,
    check=check_blocks,
    additions=("sinks", "slopes", "softcap"),
)
"""Causal attention of a ragged batch over a paged KV cache (Kwon et al. 2023, arXiv:2309.06180).

Soft caps are those of Gemma 2 (arXiv:2408.00118), sinks those of gpt-oss (arXiv:2508.10925), slopes those of ALiBi
(Press et al. 2021, arXiv:2108.12409).
"""


def _after_dequantization(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function of a quantised cache that dequantises the blocks in use and calls `function` with them."""

    def dequantize_and_call(
        q: Array,
        k_cache: Array,
        v_cache: Array,
        cu_seqlens_q: Array,
        seqlens_k: Array,
        block_tables: Array,
        k_scale: Array,
        v_scale: Array,
        sinks: Array | None,
        slopes: Array | None,
        **attributes: Any,
    ) -> Array:
        used, tables = np.unique(block_tables, return_inverse=True)
        used = np.clip(used, 0, len(k_cache) - 1)  # entries that are not read may be any number
        k, v = (
            dequantize_rows(codes[used], scales[used], q.dtype)
            for codes, scales in ((k_cache, k_scale), (v_cache, v_scale))
        )
        tables = tables.reshape(block_tables.shape).astype(np.int32)
        return function(q, k, v, cu_seqlens_q, seqlens_k, tables, sinks, slopes, **attributes)

    return dequantize_and_call


def _quantized_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in PAGED_ATTENTION.samples(rng):
        q, k_cache, v_cache, *tables, sinks, slopes = sample.inputs
        for codes, (k_codes, v_codes, *scales) in quantized_caches(k_cache, v_cache):
            yield Sample(
                f"{sample.label}_{codes}", (q, k_codes, v_codes, *tables, *scales, sinks, slopes), sample.attributes
            )


def _quantized_cost(call: Call) -> Cost:
    """Count one read of the codes and scales that are visible to some query of their sequence."""
    _, num_heads, head_dim = call.shape("q")
    num_kv_heads, window = call.shape("k_cache")[1], int(call.attributes["window"])
    pairs = sum(visible_pairs(*sequence, window) for sequence in call.sequences)
    cache_bytes = quantized_bytes(_num_visible_keys(call) * num_kv_heads, head_dim)
    read = call.bytes_in("q", "cu_seqlens_q", "seqlens_k", "block_tables", "sinks", "slopes") + cache_bytes
    return Cost(read, call.bytes_out("out"), 4 * num_heads * head_dim * pairs)


assert PAGED_ATTENTION.reference is not None
assert PAGED_ATTENTION.by_row is not None
assert PAGED_ATTENTION.term_magnitudes is not None
PAGED_ATTENTION_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """paged_attention_quantized(q: F[T, H, C], k_cache: q8[N, K, P, C], v_cache: q8[N, K, P, C],
        cu_seqlens_q: i32[S+1], seqlens_k: i32[S], block_tables: i32[S, M],
        k_scale: f32[N, K, P], v_scale: f32[N, K, P], sinks: f32[H]?, slopes: f32[H]?;
        scale: float, window: int = 0, softcap: float = 0.0) -> (out: F[T, H, C])"""
    ),
    summary="paged_attention over a quantised cache: a key or value is its codes times its scale.",
    reference=_after_dequantization(PAGED_ATTENTION.reference),
    by_row=_after_dequantization(PAGED_ATTENTION.by_row),
    samples=_quantized_samples,
    term_magnitudes=_after_dequantization(PAGED_ATTENTION.term_magnitudes),
    # Kernels may round softmax weight times value scale to F before the product with the codes.
    tolerances=accumulated(inner_roundings=1),
    gathered=frozenset({"k_cache", "v_cache", "k_scale", "v_scale"}),
    cost=_quantized_cost,
    check=check_blocks,
    additions=("sinks", "slopes", "softcap"),
)
"""Causal attention of a ragged batch over a paged KV cache of 8-bit codes with a scale per row."""
