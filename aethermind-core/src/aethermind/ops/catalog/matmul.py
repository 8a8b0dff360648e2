"""The matrix product of two activations, for every leading index."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.cost import Call, Cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MATMUL"]


def _reference(a: Array, b: Array) -> Array:
    return a @ b


def _by_row(a: Array, b: Array) -> Array:
    return (a[..., :, None, :] @ b[..., None, :, :])[..., 0, :]


def _term_magnitudes(a: Array, b: Array) -> Array:
    return np.abs(a) @ np.abs(b)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for leading, num_rows, num_inner, num_columns in (
        ((), 3, 7, 5),
        ((), 1, 65, 33),
        ((), 0, 8, 4),
        ((), 17, 31, 47),
        ((1,), 4, 1, 1),
        ((0,), 2, 3, 4),
        ((3,), 5, 19, 2),
        ((2, 3), 4, 9, 6),
        ((2,), 33, 64, 40),
        ((), 300, 70, 33),
        ((), 3, 2080, 5),
        ((2,), 9, 20, 300),
        ((40,), 2, 3, 5),
    ):
        label = "x".join(map(str, (*leading, num_rows, num_inner, num_columns)))
        yield Sample(label, (normal(rng, *leading, num_rows, num_inner), normal(rng, *leading, num_inner, num_columns)))


def _cost(call: Call) -> Cost:
    flops = 2 * prod(call.shape("out")) * call.shape("a")[-1]
    return Cost(call.bytes_in("a", "b"), call.bytes_out("out"), flops)


MATMUL = Operator(
    schema=OperatorSchema.parse("matmul(a: F[..., M, K], b: F[..., K, N]) -> (out: F[..., M, N])"),
    summary="a @ b over the last two dims, summed in float32.",
    reference=_reference,
    by_row=_by_row,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_cost,
)
