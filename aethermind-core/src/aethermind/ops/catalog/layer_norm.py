"""Shifts every vector to mean zero and scales it to variance one, then by a weight and a bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["LAYER_NORM"]


def _reference(x: Array, weight: Array, bias: Array | None, *, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    out = centred / _deviation(x, eps) * weight
    return out if bias is None else out + bias


def _deviation(x: Array, eps: float) -> Array:
    return np.sqrt(x.var(axis=-1, keepdims=True) + eps)


def _term_magnitudes(x: Array, weight: Array, bias: Array | None, *, eps: float) -> Array:
    uncentred = np.abs(x) + np.abs(x).mean(axis=-1, keepdims=True)
    out = uncentred / _deviation(x, eps) * np.abs(weight)
    return out if bias is None else out + np.abs(bias)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in (
        (3, 7),
        (1, 896),
        (0, 16),
        (5, 2, 80),
        (4, 7, 8),
        (17, 33),
        (2, 1),
        (12,),
        (300, 9),
        (2, 2080),
        (1, 8200),
    ):
        x, weight = normal(rng, *shape), normal(rng, shape[-1])
        label = "x".join(map(str, shape))
        yield Sample(label, (x, weight, None), {"eps": 1e-6})
        yield Sample(f"{label}_bias", (x, weight, normal(rng, shape[-1])), {"eps": 1e-5})
    yield Sample("zeros", (np.zeros((2, 5)), normal(rng, 5), normal(rng, 5)), {"eps": 1e-5})
    yield Sample("far_from_zero", (normal(rng, 2, 65) + 30, normal(rng, 65), None), {"eps": 1e-5})
    yield Sample("very_far_from_zero", (normal(rng, 3, 130) + 1000, normal(rng, 130), None), {"eps": 1e-5})
    yield Sample("small_against_eps", (normal(rng, 2, 19) * 1e-3, normal(rng, 19), None), {"eps": 1e-5})


LAYER_NORM = Operator(
    schema=OperatorSchema.parse(
        "layer_norm(x: F[..., D], weight: F[D], bias: F[D]?; eps: float) -> (out: F[..., D] ~ x)"
    ),
    summary="(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dim, rounded to F once at the end.",
    reference=_reference,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
