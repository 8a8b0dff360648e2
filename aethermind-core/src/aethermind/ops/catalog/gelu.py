"""The activation x · Φ(x), with the normal distribution's Φ or its approximation by tanh."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["GELU"]

_CUBIC = 0.044715


def _reference(x: Array, *, approximate: bool) -> Array:
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)))
    return 0.5 * x * _erfc(-x * math.sqrt(0.5))


def _erfc(x: Array) -> Array:
    """1 - erf(x); NumPy has none."""
    return np.fromiter(map(math.erfc, x.ravel().tolist()), x.dtype, x.size).reshape(x.shape)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    saturated = np.array([-1e4, -200.0, -20.0, -6.0, -3.0, -0.0, 0.0, 1e-6, 3.0, 6.0, 20.0, 200.0, 1e4])
    for sample in (*same_shaped(rng, 1), Sample("saturated", (saturated,))):
        yield sample
        yield Sample(f"{sample.label}_approximate", sample.inputs, {"approximate": True})


GELU = Operator(
    schema=OperatorSchema.parse("gelu(x: F[...]; approximate: bool = False) -> (out: F[...] ~ x)"),
    summary=(
        "x * (1 + erf(x / √2)) / 2, element by element; the approximate form is "
        "x * (1 + tanh(√(2/π) * (x + 0.044715 * x³))) / 2."
    ),
    reference=_reference,
    samples=_samples,
    # Left of zero 1 + erf cancels.
    tolerances=accumulated(absolute=1e-6),
)
