"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864), and its update of cached keys (K-shift).

A K-shift rotates cached keys to other positions, so that they need not be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import check_shifted_blocks
from aethermind.ops.catalog._quantized_rows import one_code_magnitudes, quantize_rows, quantized_caches
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import ONE_ROUNDING, Array, Call, Cost, Operator, Sample, float32_only
from aethermind.ops.schema import OperatorSchema, TensorType

__all__ = [
    "ROPE",
    "ROPE_TABLE",
    "SHIFT_KEYS",
    "SHIFT_KEYS_QUANTIZED",
    "check_rotary_dim",
    "narrow_table_extension",
    "random_rope_table",
    "rope_magnitudes",
]

_MAX_EXACT_IN_FLOAT32 = 2**24


def _rope_table_reference(positions: Array, inv_freq: Array, *, scale: float) -> Array:
    # Models are trained with angles rounded to float32, so the reference rounds them, too.
    frequencies = inv_freq.astype(np.float32)
    rounded = positions.astype(np.float32)[:, None] * frequencies
    exact = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    angle = np.where(np.abs(positions)[:, None] <= _MAX_EXACT_IN_FLOAT32, rounded, exact)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) * scale
    return table.astype(inv_freq.dtype)


def _rope_table_term_magnitudes(positions: Array, inv_freq: Array, *, scale: float) -> Array:
    return np.full((len(positions), 2 * len(inv_freq)), abs(scale))


def _rope_table_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, head_dim in ((5, 8), (1, 64), (0, 16), (17, 80), (33, 128), (300, 8)):
        positions = rng.integers(0, 4096, num_tokens, dtype=np.int64)
        yield Sample(f"T{num_tokens}_C{head_dim}", (positions, _inverse_frequencies(head_dim, 1e4)))
    far = np.array([0, 1, 32767, 131071, 1000000], np.int64)
    yield Sample("far_positions", (far, _inverse_frequencies(64, 1e6)))
    beyond = np.array([2**24 - 1, 2**24, 2**24 + 1, 2**31 + 5, -(2**31) - 5, 2**40 + 1], np.int64)
    yield Sample("beyond_float32", (beyond, _inverse_frequencies(64, 1e6)))
    yield Sample("scaled", (np.arange(7, dtype=np.int64), _inverse_frequencies(10, 1e4)), {"scale": 1.1386294})


def _inverse_frequencies(head_dim: int, theta: float) -> Array:
    return theta ** -(np.arange(0, head_dim, 2) / head_dim)


ROPE_TABLE = Operator(
    schema=OperatorSchema.parse(
        "rope_table(positions: i64[T], inv_freq: f32[E]; scale: float = 1.0) -> (table: f32[T, 2*E])"
    ),
    summary="[cos(p·f)·scale | sin(p·f)·scale] with the product p·f rounded to float32, as in training; where |p| > "
    "2^24, which float32 cannot represent exactly, p·f is in float64. Positions may be negative.",
    reference=_rope_table_reference,
    samples=_rope_table_samples,
    term_magnitudes=_rope_table_term_magnitudes,
    tolerances=float32_only(relative_to_terms=1e-6),
)
"""Cosines and sines of the rotary embedding at the positions of a step, computed once for all layers."""


def _rope_reference(x: Array, table: Array, *, interleaved: bool) -> Array:
    rotary_dim = table.shape[-1]
    first, second = _pairs(x[..., :rotary_dim], interleaved)
    cos, sin = _cosines_sines(table)
    rotated = _join_pairs(first * cos - second * sin, second * cos + first * sin, interleaved)
    return np.concatenate([rotated, x[..., rotary_dim:]], axis=-1)


def rope_magnitudes(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Return the sum of the magnitudes of the two terms of each element; `x` may be magnitudes itself."""
    rotary_dim = table.shape[-1]
    first, second = _pairs(np.abs(x[..., :rotary_dim]), interleaved)
    cos, sin = _cosines_sines(np.abs(table))
    rotated = _join_pairs(first * cos + second * sin, second * cos + first * sin, interleaved)
    return np.concatenate([rotated, np.abs(x[..., rotary_dim:])], axis=-1)


def check_rotary_dim(head_dim: int, rotary_dim: int) -> None:
    """Raise OperatorError if a table of cosines and sines is wider than a head, or its width is odd."""
    if rotary_dim > head_dim or rotary_dim % 2:
        raise OperatorError(f"A table of {rotary_dim} cosines and sines does not fit heads of {head_dim} elements.")


def _pairs(x: Array, interleaved: bool) -> tuple[Array, Array]:
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])


def _cosines_sines(table: Array) -> tuple[Array, Array]:
    half = table.shape[-1] // 2
    return table[:, None, :half], table[:, None, half:]


def _join_pairs(first: Array, second: Array, interleaved: bool) -> Array:
    if interleaved:
        return np.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])
    return np.concatenate([first, second], axis=-1)


def narrow_table_extension(head: TensorType | None, table: TensorType | None) -> str | None:
    """Return the `Operator.extension` of a call whose rotary table [..., R] is narrower than a head [..., C]."""
    head_dim, rotary_dim = (None if type is None else type.shape[-1] for type in (head, table))
    is_narrow = isinstance(head_dim, int) and isinstance(rotary_dim, int) and rotary_dim < head_dim
    return "rotary tables that are narrower than a head" if is_narrow else None


def random_rope_table(rng: np.random.Generator, num_tokens: int, rotary_dim: int) -> Array:
    """Return a rotary table [T, R] of random angles, as `rope_table` makes it."""
    angle = rng.uniform(-np.pi, np.pi, (num_tokens, rotary_dim // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def _rope_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, head_dim in (
        (3, 2, 8),
        (1, 7, 64),
        (0, 2, 16),
        (5, 1, 80),
        (17, 3, 128),
        (4, 2, 10),
        (2, 3, 2),
        (300, 2, 8),
        (2, 40, 16),
    ):
        inputs = (normal(rng, num_tokens, num_heads, head_dim), random_rope_table(rng, num_tokens, head_dim))
        label = f"T{num_tokens}_H{num_heads}_C{head_dim}"
        yield Sample(label, inputs)
        yield Sample(f"{label}_interleaved", inputs, {"interleaved": True})
    for num_tokens, num_heads, head_dim, rotary_dim in (
        (3, 2, 8, 4),
        (5, 3, 80, 20),
        (2, 7, 64, 32),
        (17, 2, 128, 96),
        (4, 2, 11, 6),
        (2, 1, 10, 2),
        (3, 2, 6, 0),
    ):
        inputs = (normal(rng, num_tokens, num_heads, head_dim), random_rope_table(rng, num_tokens, rotary_dim))
        label = f"T{num_tokens}_H{num_heads}_C{head_dim}_R{rotary_dim}"
        yield Sample(label, inputs)
        yield Sample(f"{label}_interleaved", inputs, {"interleaved": True})


ROPE = Operator(
    schema=OperatorSchema.parse(
        "rope(x: F[T, H, C], table: f32[T, R]; interleaved: bool = False) -> (out: F[T, H, C] ~ x)"
    ),
    summary=(
        "Rotates the pairs (i, i + R/2), or (2i, 2i + 1) when interleaved, of the first R <= C elements of a head by "
        "the table's angles [cos | sin]; the rest is copied (partial rotary embedding, as in GPT-NeoX)."
    ),
    reference=_rope_reference,
    samples=_rope_samples,
    term_magnitudes=rope_magnitudes,
    tolerances=ONE_ROUNDING,
    check=lambda arrays, shapes: check_rotary_dim(shapes["x"][2], shapes["table"][1]),
    extension=lambda types: narrow_table_extension(types["x"], types["table"]),
)
"""The rotary embedding: rotates pairs of a head's elements by the angles of the token's position."""


# K-shift


def _slots_to_shift(blocks: Array, num_tokens: Array) -> tuple[Array, Array, Array]:
    """Return, for every slot that is rotated, the index of its block in `blocks`, the block, and the slot's offset."""
    indices = np.repeat(np.arange(len(blocks)), num_tokens)
    offsets = np.arange(len(indices)) - np.repeat(np.cumsum(num_tokens) - num_tokens, num_tokens)
    return indices, blocks[indices], offsets


def _shift_reference(k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool) -> Array:
    k_out = k_cache.copy()
    _shift_update((k_cache, blocks, num_tokens, table), (k_out,), interleaved=interleaved)
    return k_out


def _shift_update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table = inputs
    (k_cache,) = outputs
    indices, shifted, offsets = _slots_to_shift(blocks, num_tokens)
    assert ROPE.reference is not None
    keys = k_cache[shifted, :, offsets].astype(table.dtype)
    k_cache[shifted, :, offsets] = ROPE.reference(keys, table[indices], interleaved=interleaved)


def _shift_term_magnitudes(
    k_cache: Array, blocks: Array, num_tokens: Array, table: Array, *, interleaved: bool
) -> Array:
    magnitudes = np.abs(k_cache)
    indices, shifted, offsets = _slots_to_shift(blocks, num_tokens)
    magnitudes[shifted, :, offsets] = rope_magnitudes(
        k_cache[shifted, :, offsets], table[indices], interleaved=interleaved
    )
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
        inputs = (k_cache, blocks, num_tokens, random_rope_table(rng, num_shifted, head_dim))
        label = f"B{num_shifted}_K{num_kv_heads}_P{block_size}_C{head_dim}"
        yield Sample(label, inputs)
        yield Sample(f"{label}_interleaved", inputs, {"interleaved": True})
        if num_shifted in (3, 5):
            narrow = (*inputs[:3], random_rope_table(rng, num_shifted, head_dim // 4))
            yield Sample(f"{label}_partial", narrow)
            yield Sample(f"{label}_partial_interleaved", narrow, {"interleaved": True})


def _shift_cost(call: Call, scale_bytes: int = 0) -> Cost:
    """Count every slot of the blocks, as shapes do not say how many are filled. A key has a scale of `scale_bytes`."""
    _, num_kv_heads, block_size, head_dim = call.shape("k_cache")
    rows = call.shape("blocks")[0] * num_kv_heads * block_size
    moved = rows * (head_dim * call.inputs["k_cache"].dtype.itemsize + scale_bytes)
    return Cost(moved + call.bytes_in("blocks", "num_tokens", "table"), moved, 3 * rows * head_dim)


SHIFT_KEYS = Operator(
    schema=OperatorSchema.parse(
        """shift_keys(k_cache: F[N, K, P, C], blocks: i32[B], num_tokens: i32[B], table: f32[B, R];
        interleaved: bool = False) -> (k_out: F[N, K, P, C] = k_cache)"""
    ),
    summary=(
        "Rotates the keys in the first num_tokens[b] slots of blocks[b] as rope does, by row b of the table, which is "
        "the rope_table of the distances by which positions move. The blocks are distinct."
    ),
    reference=_shift_reference,
    update=_shift_update,
    samples=_shift_samples,
    term_magnitudes=_shift_term_magnitudes,
    tolerances=ONE_ROUNDING,
    gathered=frozenset({"k_cache"}),
    cost=_shift_cost,
    check=check_shifted_blocks,
)
"""Rotates keys of the paged cache from the positions at which they were computed to others, in place."""


def _shift_quantized_reference(
    k_cache: Array, blocks: Array, num_tokens: Array, table: Array, k_scale: Array, *, interleaved: bool
) -> tuple[Array, Array]:
    outputs = (k_cache.copy(), k_scale.copy())
    _shift_quantized_update((k_cache, blocks, num_tokens, table, k_scale), outputs, interleaved=interleaved)
    return outputs


def _shift_quantized_update(inputs: Sequence[Array], outputs: Sequence[Array], *, interleaved: bool) -> None:
    _, blocks, num_tokens, table, _ = inputs
    k_cache, k_scale = outputs
    indices, shifted, offsets = _slots_to_shift(blocks, num_tokens)
    assert ROPE.reference is not None
    rotated = ROPE.reference(k_cache[shifted, :, offsets].astype(table.dtype), table[indices], interleaved=interleaved)
    codes, scales = quantize_rows(rotated, DType.of_numpy(k_cache.dtype))
    k_cache[shifted, :, offsets] = codes
    k_scale[shifted, :, offsets] *= scales


def _shift_quantized_term_magnitudes(*inputs: Array, **_: bool) -> tuple[Array, Array]:
    """Return magnitudes that accept neighbouring codes, and twice the scales, an upper bound after rotation."""
    return one_code_magnitudes(inputs[0]), 2 * np.abs(inputs[-1])


def _shift_quantized_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    reference=_shift_quantized_reference,
    update=_shift_quantized_update,
    samples=_shift_quantized_samples,
    term_magnitudes=_shift_quantized_term_magnitudes,
    tolerances=float32_only(),
    gathered=frozenset({"k_cache"}),
    cost=lambda call: _shift_cost(call, scale_bytes=4),
    check=check_shifted_blocks,
)
"""Rotates the codes of keys of a quantised cache and quantises them again, in place."""
