"""A residual connection followed by its norm; both the sum and the normed sum are wanted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["ADD_RMS_NORM"]


def _decompose(b: OpBuilder[Array], x: Array, residual: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    total = b.op("add", x, residual)
    return b.op("rms_norm", total, weight, eps=eps), total


def _term_magnitudes(x: Array, residual: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    total = x + residual
    normed = total / np.sqrt(np.mean(total * total, axis=-1, keepdims=True) + eps) * weight
    return np.abs(normed), np.abs(total)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 896), (0, 16), (4, 3, 10), (17, 33), (2, 1), (300, 9), (2, 2080), (1, 8200)):
        inputs = (normal(rng, *shape), normal(rng, *shape), normal(rng, shape[-1]))
        yield Sample("x".join(map(str, shape)), inputs, {"eps": 1e-6})


ADD_RMS_NORM = Operator(
    schema=OperatorSchema.parse(
        """add_rms_norm(x: F[..., D], residual: F[..., D], weight: F[D]; eps: float)
        -> (out: F[..., D] ~ x, total: F[..., D] ~ residual)"""
    ),
    summary="total = x + residual, rounded to F; out = rms_norm(total, weight).",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # The rounding of total reaches out twice: through its element and through the mean square.
    tolerances=accumulated(inner_roundings=2),
)
