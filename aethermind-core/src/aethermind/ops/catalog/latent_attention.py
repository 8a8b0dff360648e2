"""Multi-head latent attention (MLA; DeepSeek-V2, 2024, arXiv:2405.04434) in its absorbed form.

The cache holds one row for each token: a latent vector of `rank` elements, from which the keys and values of all heads
could be computed, and a rotated key that all heads share. The absorbed form applies the projections from the latent
vector to the queries and to the output instead (`linear_per_head`), so that attention reads the cached rows themselves:
they are the keys, and their first `rank` elements are the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._index_checks import Shapes, check_blocks
from aethermind.ops.catalog._sample_inputs import normal, paged_attention_sample, weight
from aethermind.ops.catalog.paged_attention import PAGED_ATTENTION
from aethermind.ops.operator import ONE_ROUNDING, Array, Call, Cost, Operator, Sample, accumulated, visible_pairs
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["LINEAR_PER_HEAD", "MLA_ATTENTION"]


def _mla_decompose(
    b: OpBuilder[Array],
    q: Array,
    k_cache: Array,
    cu_seqlens_q: Array,
    seqlens_k: Array,
    block_tables: Array,
    *,
    value_dim: int,
    scale: float,
) -> Array:
    tables = (cu_seqlens_q, seqlens_k, block_tables)
    whole = b.op("paged_attention", q, k_cache, k_cache, *tables, None, None, scale=scale)
    return b.op("slice_last", whole, size=value_dim)


def _mla_magnitudes(q: Array, k_cache: Array, *tables: Array, value_dim: int, scale: float) -> Array:
    """Return the sums of absolute terms, to which tolerances are relative."""
    assert PAGED_ATTENTION.term_magnitudes is not None
    attributes: dict[str, Any] = {"scale": scale, "window": 0, "softcap": 0.0}
    return PAGED_ATTENTION.term_magnitudes(q, k_cache, k_cache, *tables, None, None, **attributes)[..., :value_dim]


def _mla_samples(rng: np.random.Generator) -> Iterator[Sample]:
    mixed = [(1, 9), (7, 7), (4, 11), (1, 16), (3, 17)]
    for label, sequences, num_heads, rank, rope_dim, block_size, unused in (
        ("prefill", [(5, 5), (17, 17)], 4, 32, 8, 16, None),
        ("mixed", mixed, 16, 64, 16, 16, None),
        ("mixed_odd_rank", mixed, 3, 21, 2, 4, None),
        ("mixed_block_size_1", mixed, 2, 8, 4, 1, None),
        ("no_sequences", [], 2, 8, 4, 4, None),
        ("sequence_without_queries", [(2, 4), (0, 6), (1, 3)], 2, 8, 4, 4, None),
        ("decode_512_and_64", [(1, 300), (1, 5), (1, 129)], 16, 512, 64, 16, None),
        ("decode_128_heads", [(1, 70), (1, 1)], 128, 32, 8, 16, None),
        ("decode_long", [(1, 300), (1, 1500), (1, 64)], 4, 16, 8, 64, None),
        ("prefill_300", [(300, 300)], 2, 16, 8, 16, None),
        ("chunk_long", [(20, 1500), (1, 600), (9, 280)], 2, 8, 4, 16, None),
        ("unused_slots_nan", [(1, 300), (5, 21), (1, 64), (33, 70)], 4, 32, 16, 16, np.nan),
    ):
        plain = paged_attention_sample(
            rng, label, sequences, num_heads, 1, rank + rope_dim, block_size, 0, unused=unused
        )
        q, k_cache, _, *tables = plain.inputs[:6]
        attributes = {"value_dim": rank, "scale": plain.attributes["scale"]}
        yield Sample(f"{label}_rank_{rank}_rope_{rope_dim}", (q, k_cache, *tables), attributes)


def _mla_cost(call: Call) -> Cost:
    """Count one read of the rows of each sequence that has queries."""
    _, num_heads, key_dim = call.shape("q")
    pairs = sum(visible_pairs(*sequence) for sequence in call.sequences)
    num_keys = sum(keys for queries, keys in call.sequences if queries)
    row_bytes = call.shape("k_cache")[1] * key_dim * call.inputs["k_cache"].dtype.itemsize
    read = call.bytes_in("q", "cu_seqlens_q", "seqlens_k", "block_tables") + num_keys * row_bytes
    return Cost(read, call.bytes_out("out"), 2 * num_heads * (key_dim + call.shape("out")[2]) * pairs)


def _mla_check(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    if shapes["out"][2] > shapes["k_cache"][3]:
        raise OperatorError(f"value_dim is {shapes['out'][2]}, but a cached row has {shapes['k_cache'][3]} elements.")
    check_blocks(arrays, shapes)


MLA_ATTENTION = Operator(
    schema=OperatorSchema.parse(
        """mla_attention(q: F[T, H, C], k_cache: F[N, K, P, C], cu_seqlens_q: i32[S+1], seqlens_k: i32[S],
        block_tables: i32[S, M]; value_dim: int, scale: float) -> (out: F[T, H, value_dim])"""
    ),
    summary=(
        "paged_attention whose values are the first value_dim elements of the keys. Rows past cu_seqlens_q[S] are "
        "padding; their output is undefined."
    ),
    decompose=_mla_decompose,
    samples=_mla_samples,
    term_magnitudes=_mla_magnitudes,
    # Kernels may round the softmax weights to F before the product with the values.
    tolerances=accumulated(inner_roundings=1),
    gathered=frozenset({"k_cache"}),
    cost=_mla_cost,
    check=_mla_check,
)
"""Latent attention of a ragged batch over a paged cache of latent vectors and rotated keys."""


def _per_head_decompose(b: OpBuilder[Array], x: Array, w: Array, *, num_heads: int) -> Array:
    """Multiply each head by the matrices of all heads, and select the product with its own."""
    out = None
    for head in range(num_heads):
        all_products = b.op("linear", b.op("select", x, index=head), w, None)
        product = b.op("select", b.op("split_last", all_products, count=num_heads), index=head)
        as_head = b.op("split_last", product, count=1)
        out = as_head if out is None else b.op("concat", out, as_head)
    return out


def _per_head_magnitudes(x: Array, w: Array, *, num_heads: int) -> Array:
    return np.einsum("thi,hni->thn", np.abs(x), np.abs(w).reshape(num_heads, len(w) // num_heads, w.shape[1]))


def _per_head_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, num_outputs, num_inputs in (
        (3, 4, 5, 7),
        (1, 16, 64, 32),
        (1, 2, 33, 130),
        (0, 2, 8, 8),
        (17, 1, 31, 47),
        (70, 3, 16, 24),
        (133, 4, 24, 40),
        (5, 128, 16, 32),
        (300, 2, 17, 33),
        (9, 2, 12, 1100),
    ):
        x, w = normal(rng, num_tokens, num_heads, num_inputs), weight(rng, num_heads * num_outputs, num_inputs)
        label = f"T{num_tokens}_H{num_heads}_N{num_outputs}_K{num_inputs}"
        yield Sample(label, (x, w), {"num_heads": num_heads})


def _per_head_cost(call: Call) -> Cost:
    if not call.shape("x")[0]:
        return Cost()
    flops = 2 * prod(call.shape("out")) * call.shape("x")[2]
    return Cost(call.bytes_in("x", "w"), call.bytes_out("out"), flops)


def _per_head_check(_: Mapping[str, Array], shapes: Shapes) -> None:
    num_heads, rows, width = shapes["x"][1], shapes["w"][0], shapes["out"][2]
    if num_heads * width != rows:
        raise OperatorError(f"w has {rows} rows, which are not {width} for each of {num_heads} heads.")


LINEAR_PER_HEAD = Operator(
    schema=OperatorSchema.parse(
        "linear_per_head(x: F[T, H, I], w: W[N, I]; num_heads: int) -> (out: F[T, H, N/num_heads])"
    ),
    summary="out[t, h] = x[t, h] @ w[h].T; w[h], the matrix of head h, is N / num_heads rows of w; num_heads is H.",
    decompose=_per_head_decompose,
    samples=_per_head_samples,
    term_magnitudes=_per_head_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_per_head_cost,
    check=_per_head_check,
)
"""A product of each head with a matrix of its own."""
