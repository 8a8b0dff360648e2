"""Turns keys of the paged cache from the positions at which they were computed to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.ops.catalog._index_checks import check_shifted_blocks
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.catalog.rope import ROPE, rope_magnitudes, rotation_table
from aethermind.ops.cost import Call, Cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SHIFT_KEYS", "filled_slots", "shift_cost"]


def filled_slots(blocks: Array, num_tokens: Array) -> tuple[Array, Array, Array]:
    """Of every slot that is turned: its entry in `blocks`, its block, and its offset in that."""
    entries = np.repeat(np.arange(len(blocks)), num_tokens)
    offsets = np.arange(len(entries)) - np.repeat(np.cumsum(num_tokens) - num_tokens, num_tokens)
    return entries, blocks[entries], offsets


def _reference(k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool) -> Array:
    k_out = k_cache.copy()
    _update((k_cache, blocks, num_tokens, table), (k_out,), interleaved=interleaved)
    return k_out


def _update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table = inputs
    (k_cache,) = outputs
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    assert ROPE.reference is not None
    keys = k_cache[rows, :, offsets].astype(table.dtype)
    k_cache[rows, :, offsets] = ROPE.reference(keys, table[entries], interleaved=interleaved)


def _term_magnitudes(k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool) -> Array:
    magnitudes = np.abs(k_cache)
    entries, rows, offsets = filled_slots(blocks, num_tokens)
    magnitudes[rows, :, offsets] = rope_magnitudes(k_cache[rows, :, offsets], table[entries], interleaved=interleaved)
    return magnitudes


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
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


def shift_cost(call: Call, bytes_beside: int = 0) -> Cost:
    """Keys are read and written, and so are `bytes_beside` each; how many of a block are filled, shapes do not say."""
    _, num_kv_heads, block_size, head_dim = call.shape("k_cache")
    rows = call.shape("blocks")[0] * num_kv_heads * block_size
    moved = rows * (head_dim * call.inputs["k_cache"].dtype.itemsize + bytes_beside)
    return Cost(moved + call.bytes_in("blocks", "num_tokens", "table"), moved, 3 * rows * head_dim)


SHIFT_KEYS = Operator(
    schema=OperatorSchema.parse(
        """shift_keys(k_cache: F[N, K, P, C], blocks: i32[B], num_tokens: i32[B], table: f32[B, C];
        interleaved: bool = False) -> (k_out: F[N, K, P, C] = k_cache)"""
    ),
    summary=(
        "rope with row b of the table on the keys in the first num_tokens[b] slots of blocks[b]; the table is that of "
        "the distances that positions move by. No block is named twice."
    ),
    reference=_reference,
    update=_update,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=ONE_ROUNDING,
    gathered=frozenset({"k_cache"}),
    cost=shift_cost,
    check=check_shifted_blocks,
)
