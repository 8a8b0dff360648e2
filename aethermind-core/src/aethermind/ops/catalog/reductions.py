"""Reductions over dims, the last one by default: sums, products, the largest and the smallest elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, vectors
from aethermind.ops.operator import EXACT, ONE_ROUNDING, Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema
from aethermind.ops.shape_inference import known_sizes, positive_dims, reduce

__all__ = ["ARGMAX", "ARGMIN", "MAX", "MEAN", "MIN", "PROD", "SUM"]

_SHAPES_AND_DIMS: Sequence[tuple[tuple[int, ...], tuple[int, ...], bool]] = (
    ((3, 7), (0,), False),
    ((17, 33), (-1,), True),
    ((5, 2, 80), (1,), False),
    ((5, 3, 80), (0, -1), True),
    ((4, 3, 5, 6), (2, 1), False),
    ((2, 3, 4, 5), (0, 2), False),
    ((3, 4, 5, 20), (1, 3), True),
    ((3, 2, 3, 2, 3, 2), (0, 2, 4), False),
    ((2, 1, 5), (1,), False),
    ((1, 1), (0, 1), True),
    ((70, 9, 3), (), False),
    ((2, 9001), (), True),
    ((2, 600, 257), (1,), False),
    ((9001, 3), (0,), False),
    ((3, 0, 16), (2,), True),
)
"""Shapes, the dims that are reduced (`()` for all), and `keepdim`."""


def _samples_of_dims(rng: np.random.Generator, draw: Callable[..., Array] = normal) -> Iterator[Sample]:
    """Yield samples of an operator that reduces several dims."""
    for shape, dim, keepdim in _SHAPES_AND_DIMS:
        label = f"{'x'.join(map(str, shape))}_dims_{'_'.join(map(str, dim)) or 'all'}{'_kept' if keepdim else ''}"
        yield Sample(label, (draw(rng, *shape),), {"dim": dim, "keepdim": keepdim})


def _samples_of_one_dim(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of an operator that reduces one dim."""
    for sample in _samples_of_dims(rng):
        if len(dim := sample.attributes["dim"]) == 1:
            yield replace(sample, attributes={**sample.attributes, "dim": dim[0]})


def _reduce_as_last_dim(name: str, builder: OpBuilder[Any], x: Any, *, dim: int | Sequence[int], keepdim: bool) -> Any:
    """Permute and reshape x so that the reduced dims are its last dim, and reduce that one."""
    shape = tuple(x.shape)
    all_dims = tuple(range(len(shape)))
    reduced = sorted(positive_dims(dim, len(shape))) if dim != () else all_dims
    kept = [position for position in all_dims if position not in reduced]
    if (*kept, *reduced) != all_dims:
        x = builder.op("permute", x, dims=(*kept, *reduced))
    if len(reduced) != 1 or keepdim:
        size = prod(known_sizes(tuple(shape[position] for position in reduced)))
        x = builder.op("reshape", x, shape=(*known_sizes(reduce(shape, dim, keepdim)), size))
    return builder.op(name, x)


def _axis(dim: Sequence[int]) -> tuple[int, ...] | None:
    """Return dims as NumPy's `axis`: None stands for all dims."""
    return tuple(dim) or None


def _sum_reference(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return x.sum(axis=_axis(dim), keepdims=keepdim)


def _sum_term_magnitudes(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return _sum_reference(np.abs(x), dim=dim, keepdim=keepdim)


def _sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield from _samples_of_dims(rng)
    yield Sample("0x5_dims_0", (normal(rng, 0, 5),), {"dim": (0,)})
    yield Sample("cancelling", (np.array([[1e3, 1.0, -1e3], [1e-3, -1e3, 1e3]]),))


SUM = Operator(
    schema=OperatorSchema.parse("sum(x: F[...]; dim: ints = [-1], keepdim: bool = False) -> (out: F[reduce(...)])"),
    summary="The sum over dims, in float32; an empty list is all dims, and keepdim leaves dims of 1 in their place.",
    reference=_sum_reference,
    samples=_sum_samples,
    term_magnitudes=_sum_term_magnitudes,
    tolerances=ONE_ROUNDING,
    additions=("dim", "keepdim"),
    without_additions=partial(_reduce_as_last_dim, "sum"),
)
"""The sum of every vector, or over other dims."""


def _mean_reference(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return x.mean(axis=_axis(dim), keepdims=keepdim)


def _mean_term_magnitudes(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return _mean_reference(np.abs(x), dim=dim, keepdim=keepdim)


def _mean_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield from _samples_of_dims(rng)
    yield Sample("cancelling", (np.array([[1e3, 1.0, -1e3], [1e-3, -1e3, 1e3]]),))


MEAN = Operator(
    schema=OperatorSchema.parse("mean(x: F[...]; dim: ints = [-1], keepdim: bool = False) -> (out: F[reduce(...)])"),
    summary="The mean over dims, which are not empty, summed in float32; dims as in sum.",
    reference=_mean_reference,
    samples=_mean_samples,
    term_magnitudes=_mean_term_magnitudes,
    tolerances=ONE_ROUNDING,
    additions=("dim", "keepdim"),
    without_additions=partial(_reduce_as_last_dim, "mean"),
)
"""The mean of every vector, or over other dims."""


def _prod_reference(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return x.prod(axis=_axis(dim), keepdims=keepdim)


def _near_one(rng: np.random.Generator, *shape: int) -> Array:
    return (1 + 0.01 * normal(rng, *shape)) * rng.choice([-1.0, 1.0], shape)


def _prod_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in vectors(rng):
        yield replace(sample, inputs=(_near_one(rng, *sample.inputs[0].shape),))  # type: ignore[union-attr]
    yield from _samples_of_dims(rng, _near_one)
    yield Sample("0x5_dims_0", (normal(rng, 0, 5),), {"dim": (0,)})
    yield Sample("zero", (np.array([[2.0, 0.0, 3.0], [2.0, -0.5, 3.0]]),))


PROD = Operator(
    schema=OperatorSchema.parse("prod(x: F[...]; dim: ints = [-1], keepdim: bool = False) -> (out: F[reduce(...)])"),
    summary="The product over dims, in float32; dims as in sum.",
    reference=_prod_reference,
    samples=_prod_samples,
    # The product is rounded after every factor.
    tolerances={dtype: replace(tolerance, relative_to_terms=1e-4) for dtype, tolerance in ONE_ROUNDING.items()},
)
"""The product of every vector, or over other dims."""


def _max_reference(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return x.max(axis=_axis(dim), keepdims=keepdim)


def _max_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield from _samples_of_dims(rng)
    yield Sample("infinite", (np.array([[-np.inf, 2.0, -3.0], [1.0, np.inf, -1.0], [-0.5, -0.25, -1.0]]),))


MAX = Operator(
    schema=OperatorSchema.parse("max(x: F[...]; dim: ints = [-1], keepdim: bool = False) -> (out: F[reduce(...)])"),
    summary="The largest element over dims, which are not empty (torch.amax); dims as in sum.",
    reference=_max_reference,
    samples=_max_samples,
    tolerances=EXACT,
    additions=("dim", "keepdim"),
    without_additions=partial(_reduce_as_last_dim, "max"),
)
"""The largest element of every vector, or over other dims."""


def _min_reference(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    return x.min(axis=_axis(dim), keepdims=keepdim)


def _min_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield from _samples_of_dims(rng)
    yield Sample("infinite", (np.array([[-np.inf, 2.0, -3.0], [1.0, np.inf, -1.0], [-0.5, -0.25, -1.0]]),))


MIN = Operator(
    schema=OperatorSchema.parse("min(x: F[...]; dim: ints = [-1], keepdim: bool = False) -> (out: F[reduce(...)])"),
    summary="The smallest element over dims, which are not empty (torch.amin); dims as in sum.",
    reference=_min_reference,
    samples=_min_samples,
    tolerances=EXACT,
    additions=("dim", "keepdim"),
    without_additions=partial(_reduce_as_last_dim, "min"),
)
"""The smallest element of every vector, or over other dims."""


def _argmax_reference(x: Array, *, dim: int, keepdim: bool) -> Array:
    return np.argmax(x, axis=dim, keepdims=keepdim).astype(np.int32)


def _argmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield from _samples_of_one_dim(rng)
    yield Sample("ties", (np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-1.0, -2.0, -3.0, -1.0]]),))
    yield Sample("ties_dim_0", (np.array([[1.0, 3.0], [3.0, 3.0], [3.0, -1.0], [2.0, 3.0]]),), {"dim": 0})
    yield Sample("zeros_of_both_signs", (np.array([[-1.0, -0.0, 0.0, -0.0], [-0.0, -0.0, 0.0, 0.0]]),))
    late = np.zeros((2, 33_001))
    late[[0, 1, 1], [32_999, 32_768, 33_000]] = 1.0
    yield Sample("late", (late,))
    yield Sample("masked", (np.array([[-np.inf, -7.0, -np.inf], [-np.inf, -np.inf, -np.inf]]),))


ARGMAX = Operator(
    schema=OperatorSchema.parse("argmax(x: F[...]; dim: int = -1, keepdim: bool = False) -> (index: i32[reduce(...)])"),
    summary="The index of the largest element over a dim, which is not empty; on ties the lowest index.",
    reference=_argmax_reference,
    samples=_argmax_samples,
    tolerances=EXACT,
    additions=("dim", "keepdim"),
    without_additions=partial(_reduce_as_last_dim, "argmax"),
)
"""The index of the largest element of every vector, or over another dim."""


def _argmin_reference(x: Array, *, dim: int, keepdim: bool) -> Array:
    return np.argmin(x, axis=dim, keepdims=keepdim).astype(np.int32)


def _argmin_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _argmax_samples(rng):
        yield replace(sample, inputs=(-sample.inputs[0],))  # type: ignore[operator]


def _argmin_decompose(builder: OpBuilder[Any], x: Any, *, dim: int, keepdim: bool) -> Any:
    return builder.op("argmax", builder.op("scale", x, factor=-1.0), dim=dim, keepdim=keepdim)


ARGMIN = Operator(
    schema=OperatorSchema.parse("argmin(x: F[...]; dim: int = -1, keepdim: bool = False) -> (index: i32[reduce(...)])"),
    summary="The index of the smallest element over a dim, which is not empty; on ties the lowest index.",
    reference=_argmin_reference,
    samples=_argmin_samples,
    decompose=_argmin_decompose,
    tolerances=EXACT,
)
"""The index of the smallest element of every vector, or over another dim."""
