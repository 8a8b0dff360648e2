"""Turns keys of a quantised cache: the codes themselves, which become codes again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import check_shifted_blocks
from aethermind.ops.catalog._quantized_rows import coded_caches, one_code, quantize_rows
from aethermind.ops.catalog._tolerances import float32_only
from aethermind.ops.catalog.rope import ROPE
from aethermind.ops.catalog.shift_keys import SHIFT_KEYS, filled_slots, shift_cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SHIFT_KEYS_QUANTIZED"]


def _reference(
    k_cache: Array, blocks: Array, num_tokens: Array, table: Array, k_scale: Array, *, interleaved: bool
) -> tuple[Array, Array]:
    outputs = (k_cache.copy(), k_scale.copy())
    _update((k_cache, blocks, num_tokens, table, k_scale), outputs, interleaved=interleaved)
    return outputs


def _update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table, _ = inputs
    k_cache, k_scale = outputs
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    assert ROPE.reference is not None
    turned = ROPE.reference(k_cache[rows, :, offsets].astype(table.dtype), table[entries], interleaved=interleaved)
    codes, scales = quantize_rows(turned, DType.of_numpy(k_cache.dtype))
    k_cache[rows, :, offsets] = codes
    k_scale[rows, :, offsets] *= scales


def _term_magnitudes(*inputs: Array, **_: bool) -> tuple[Array, Array]:
    """Of codes: one of them; of scales, which follow the largest of a row: twice what they were, a pair's most."""
    return one_code(inputs[0]), 2 * np.abs(inputs[-1])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in SHIFT_KEYS.samples(rng):
        k_cache, *shifts = sample.inputs
        for dtype, (codes, _, scales, _) in coded_caches(k_cache, k_cache):
            yield Sample(f"{sample.label}_{dtype}", (codes, *shifts, scales), sample.attributes)


SHIFT_KEYS_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """shift_keys_quantized(k_cache: q8[N, K, P, C], blocks: i32[B], num_tokens: i32[B], table: f32[B, C],
        k_scale: f32[N, K, P]; interleaved: bool = False)
        -> (k_out: q8[N, K, P, C] = k_cache, k_scale_out: f32[N, K, P] = k_scale)"""
    ),
    summary="shift_keys where a key is its codes times its scale: turned codes become codes as they are written.",
    reference=_reference,
    update=_update,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=float32_only(),
    gathered=frozenset({"k_cache"}),
    cost=lambda call: shift_cost(call, bytes_beside=4),
    check=check_shifted_blocks,
)
