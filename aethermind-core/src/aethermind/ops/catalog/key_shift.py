"""K-shift: rotates cached keys to other positions, so that they need not be computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import check_shifted_blocks
from aethermind.ops.catalog._quantized_rows import one_code, quantize_rows, quantized_caches
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING, float32_only
from aethermind.ops.catalog.rope import ROPE, rope_magnitudes, rotation_table
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SHIFT_KEYS", "SHIFT_KEYS_QUANTIZED", "filled_slots", "shift_cost"]


def filled_slots(blocks: Array, num_tokens: Array) -> tuple[Array, Array, Array]:
    """Return, for every rotated slot, its index in `blocks`, its block and its offset within the block."""
    entries = np.repeat(np.arange(len(blocks)), num_tokens)
    offsets = np.arange(len(entries)) - np.repeat(np.cumsum(num_tokens) - num_tokens, num_tokens)
    return entries, blocks[entries], offsets


def _shift_reference(k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool) -> Array:
    k_out = k_cache.copy()
    _shift_update((k_cache, blocks, num_tokens, table), (k_out,), interleaved=interleaved)
    return k_out


def _shift_update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table = inputs
    (k_cache,) = outputs
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    assert ROPE.reference is not None
    keys = k_cache[rows, :, offsets].astype(table.dtype)
    k_cache[rows, :, offsets] = ROPE.reference(keys, table[entries], interleaved=interleaved)


def _shift_term_magnitudes(
    k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool
) -> Array:
    magnitudes = np.abs(k_cache)
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    magnitudes[rows, :, offsets] = rope_magnitudes(k_cache[rows, :, offsets], table[entries], interleaved=interleaved)
    return magnitudes


def _shift_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_shifted, num_blocks, num_kv_heads, block_size, head_dim in (
        (2, 4, 2, 4, 8),
        (1, 1, 1, 16, 64),
        (0, 2, 2, 4, 8),
        (5, 9, 7, 1, 80),
        (3, 3, 2, 16, 128),
        (2, 3, 1, 5, 10),
        (40, 70, 1, 16, 8),
        (130, 300, 2, 1, 4),
    ):
        k_cache = normal(rng, num_blocks, num_kv_heads, block_size, head_dim)
        blocks = rng.permutation(num_blocks)[:num_shifted].astype(np.int32)
        num_tokens = rng.integers(1, block_size + 1, num_shifted, dtype=np.int32)
        inputs = (k_cache, blocks, num_tokens, rotation_table(rng, num_shifted, head_dim))
        label = f"B{num_shifted}_K{num_kv_heads}_P{block_size}_C{head_dim}"
        yield Sample(label, inputs)
        yield Sample(f"{label}_interleaved", inputs, {"interleaved": True})
        if num_shifted in (3, 5):
            narrow = (*inputs[:3], rotation_table(rng, num_shifted, head_dim // 4))
            yield Sample(f"{label}_partial", narrow)
            yield Sample(f"{label}_partial_interleaved", narrow, {"interleaved": True})


def shift_cost(call: Call, bytes_beside: int = 0) -> Cost:
    """Count every slot of the blocks, as shapes do not say how many are filled; `bytes_beside` are per key."""
    _, num_kv_heads, block_size, head_dim = call.shape("k_cache")
    rows = call.shape("blocks")[0] * num_kv_heads * block_size
    moved = rows * (head_dim * call.inputs["k_cache"].dtype.itemsize + bytes_beside)
    return Cost(moved + call.bytes_in("blocks", "num_tokens", "table"), moved, 3 * rows * head_dim)


SHIFT_KEYS = Operator(
    schema=OperatorSchema.parse(
        """shift_keys(k_cache: F[N, K, P, C], blocks: i32[B], num_tokens: i32[B], table: f32[B, R];
        interleaved: bool = False) -> (k_out: F[N, K, P, C] = k_cache)"""
    ),
    summary=(
        "rope with row b of the table, applied to the keys in the first num_tokens[b] slots of blocks[b]; the table is "
        "that of the distances by which positions move. The blocks are distinct."
    ),
    reference=_shift_reference,
    update=_shift_update,
    samples=_shift_samples,
    term_magnitudes=_shift_term_magnitudes,
    tolerances=ONE_ROUNDING,
    gathered=frozenset({"k_cache"}),
    cost=shift_cost,
    check=check_shifted_blocks,
)
"""Rotate keys of the paged cache from the positions at which they were computed to others, in place."""


def _quantized_reference(
    k_cache: Array, blocks: Array, num_tokens: Array, table: Array, k_scale: Array, *, interleaved: bool
) -> tuple[Array, Array]:
    outputs = (k_cache.copy(), k_scale.copy())
    _quantized_update((k_cache, blocks, num_tokens, table, k_scale), outputs, interleaved=interleaved)
    return outputs


def _quantized_update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table, _ = inputs
    k_cache, k_scale = outputs
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    assert ROPE.reference is not None
    rotated = ROPE.reference(k_cache[rows, :, offsets].astype(table.dtype), table[entries], interleaved=interleaved)
    codes, scales = quantize_rows(rotated, DType.of_numpy(k_cache.dtype))
    k_cache[rows, :, offsets] = codes
    k_scale[rows, :, offsets] *= scales


def _quantized_term_magnitudes(*inputs: Array, **_: bool) -> tuple[Array, Array]:
    """Return a tolerance of one code for codes; for scales twice their value, the most that rotating a pair makes."""
    return one_code(inputs[0]), 2 * np.abs(inputs[-1])


def _quantized_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in SHIFT_KEYS.samples(rng):
        k_cache, *shifts = sample.inputs
        for dtype, (codes, _, scales, _) in quantized_caches(k_cache, k_cache):
            yield Sample(f"{sample.label}_{dtype}", (codes, *shifts, scales), sample.attributes)


SHIFT_KEYS_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """shift_keys_quantized(k_cache: q8[N, K, P, C], blocks: i32[B], num_tokens: i32[B], table: f32[B, R],
        k_scale: f32[N, K, P]; interleaved: bool = False)
        -> (k_out: q8[N, K, P, C] = k_cache, k_scale_out: f32[N, K, P] = k_scale)"""
    ),
    summary="shift_keys over a quantised cache: codes are rotated and quantised again, and scales multiplied.",
    reference=_quantized_reference,
    update=_quantized_update,
    samples=_quantized_samples,
    term_magnitudes=_quantized_term_magnitudes,
    tolerances=float32_only(),
    gathered=frozenset({"k_cache"}),
    cost=lambda call: shift_cost(call, bytes_beside=4),
    check=check_shifted_blocks,
)
"""Rotate the codes of keys of a quantised cache and quantise them again, in place."""
