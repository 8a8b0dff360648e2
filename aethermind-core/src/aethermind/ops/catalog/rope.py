"""The rotary embedding: turns pairs of a head's elements by the angles of the token's position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ROPE", "rope_magnitudes", "rotation_table"]


def _reference(x: Array, table: Array, *, interleaved: bool) -> Array:
    first, second = _pairs(x, interleaved)
    cos, sin = _cosines_sines(table)
    return _joined(first * cos - second * sin, second * cos + first * sin, interleaved)


def rope_magnitudes(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """The sum of the magnitudes of both terms; `x` may itself be magnitudes."""
    first, second = _pairs(np.abs(x), interleaved)
    cos, sin = _cosines_sines(np.abs(table))
    return _joined(first * cos + second * sin, second * cos + first * sin, interleaved)


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


def rotation_table(rng: np.random.Generator, num_tokens: int, head_dim: int) -> Array:
    """The table of random angles, as `rope_table` lays it out."""
    angle = rng.uniform(-np.pi, np.pi, (num_tokens, head_dim // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
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


ROPE = Operator(
    schema=OperatorSchema.parse(
        "rope(x: F[T, H, C], table: f32[T, C]; interleaved: bool = False) -> (out: F[T, H, C] ~ x)"
    ),
    summary=("Rotates the pairs (i, i + C/2), or (2i, 2i + 1) when interleaved, by the table's angles [cos | sin]."),
    reference=_reference,
    samples=_samples,
    term_magnitudes=rope_magnitudes,
    tolerances=ONE_ROUNDING,
)
