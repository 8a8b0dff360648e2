"""A matrix product with a weight stored as [outputs, inputs], and a bias where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["LINEAR", "linear_magnitudes"]


def _reference(x: Array, weight: Array, bias: Array | None) -> Array:
    product = x @ weight.T
    return product if bias is None else product + bias


def _by_row(x: Array, weight: Array, bias: Array | None) -> Array:
    product = (x[:, None] @ weight.T)[:, 0]
    return product if bias is None else product + bias


def linear_magnitudes(x: Array, weight: Array, bias: Array | None) -> Array:
    """The sum of the magnitudes of the terms of every output, for pages that contain a matrix product."""
    return _reference(np.abs(x), np.abs(weight), None if bias is None else np.abs(bias))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_outputs, num_inputs in (
        (3, 5, 7),
        (1, 33, 65),
        (1, 48, 896),
        (0, 8, 8),
        (4, 1, 1),
        (17, 31, 47),
        (32, 64, 128),
        (70, 19, 130),
        (133, 24, 72),
        (12, 20, 1100),
        (130, 9, 40),
        (300, 17, 33),
        (40, 5, 2080),
        (1, 3, 8200),
        (2, 2080, 9),
    ):
        x, w = normal(rng, num_tokens, num_inputs), weight(rng, num_outputs, num_inputs)
        label = f"T{num_tokens}_N{num_outputs}_K{num_inputs}"
        yield Sample(label, (x, w, None))
        yield Sample(f"{label}_bias", (x, w, normal(rng, num_outputs)))


LINEAR = Operator(
    schema=OperatorSchema.parse("linear(x: F[T, K], weight: W[N, K], bias: F[N]?) -> (out: F[T, N])"),
    summary="x @ weight.T + bias, summed in float32.",
    reference=_reference,
    by_row=_by_row,
    samples=_samples,
    term_magnitudes=linear_magnitudes,
    tolerances=ONE_ROUNDING,
)
