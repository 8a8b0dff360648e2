"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING, float32_only
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema, TensorType

__all__ = ["ROPE", "ROPE_TABLE", "check_rotary_dim", "narrow_table", "rope_magnitudes", "rotation_table"]

_LAST_AS_TRAINED = 2**24


def _rope_table_reference(positions: Array, inv_freq: Array, *, scale: float) -> Array:
    # Models are trained with angles rounded to float32, so the reference rounds them, too.
    frequencies = inv_freq.astype(np.float32)
    rounded = positions.astype(np.float32)[:, None] * frequencies
    exact = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    angle = np.where(np.abs(positions)[:, None] <= _LAST_AS_TRAINED, rounded, exact)
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
    rotated = _joined(first * cos - second * sin, second * cos + first * sin, interleaved)
    return np.concatenate([rotated, x[..., rotary_dim:]], axis=-1)


def rope_magnitudes(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Return the sum of the magnitudes of both terms; `x` may be magnitudes."""
    rotary_dim = table.shape[-1]
    first, second = _pairs(np.abs(x[..., :rotary_dim]), interleaved)
    cos, sin = _cosines_sines(np.abs(table))
    rotated = _joined(first * cos + second * sin, second * cos + first * sin, interleaved)
    return np.concatenate([rotated, np.abs(x[..., rotary_dim:])], axis=-1)


def check_rotary_dim(head_dim: int, rotary_dim: int) -> None:
    """Check that a table of cosines and sines is not wider than a head and has whole pairs."""
    if rotary_dim > head_dim or rotary_dim % 2:
        raise OperatorError(f"A table of {rotary_dim} cosines and sines does not fit heads of {head_dim} elements.")


def _pairs(x: Array, interleaved: bool) -> tuple[Array, Array]:
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])


def _cosines_sines(table: Array) -> tuple[Array, Array]:
    half = table.shape[-1] // 2
    return table[:, None, :half], table[:, None, half:]


def _joined(first: Array, second: Array, interleaved: bool) -> Array:
    if interleaved:
        return np.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])
    return np.concatenate([first, second], axis=-1)


def narrow_table(head: TensorType | None, table: TensorType | None) -> str | None:
    """The `Operator.extension` of a call, by the types of its heads and of its rotary table, whose last dims count."""
    head_dim, rotary_dim = (None if given is None else given.shape[-1] for given in (head, table))
    is_narrow = isinstance(head_dim, int) and isinstance(rotary_dim, int) and rotary_dim < head_dim
    return "rotary tables that are narrower than a head" if is_narrow else None


def rotation_table(rng: np.random.Generator, num_tokens: int, rotary_dim: int) -> Array:
    """Return a table of random angles in the layout of `rope_table`."""
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
        inputs = (normal(rng, num_tokens, num_heads, head_dim), rotation_table(rng, num_tokens, head_dim))
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
        inputs = (normal(rng, num_tokens, num_heads, head_dim), rotation_table(rng, num_tokens, rotary_dim))
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
    extension=lambda types: narrow_table(types["x"], types["table"]),
)
"""The rotary embedding: rotates pairs of a head's elements by the angles of the token's position."""
