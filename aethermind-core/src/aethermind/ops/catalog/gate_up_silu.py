"""The first half of a SwiGLU: both projections and the gate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.linear import linear_magnitudes
from aethermind.ops.catalog.silu import sigmoid
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["GATE_UP_SILU", "gate_up_magnitudes"]

_MAX_SLOPE = 1.1
"""silu's derivative stays below this, so an error of the gate grows no further."""


def _decompose(b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array) -> Array:
    return b.op("silu_mul", b.op("linear", x, w_gate, None), b.op("linear", x, w_up, None))


def gate_up_magnitudes(x: Array, w_gate: Array, w_up: Array) -> Array:
    """How far relative errors of both products' terms carry into silu(gate) · up, to first order."""
    gate, up = x @ w_gate.T, x @ w_up.T
    from_gate = _MAX_SLOPE * linear_magnitudes(x, w_gate, None) * np.abs(up)
    return from_gate + np.abs(gate * sigmoid(gate)) * linear_magnitudes(x, w_up, None)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, hidden_size, intermediate_size in (
        (3, 7, 5),
        (1, 64, 33),
        (0, 8, 16),
        (17, 33, 47),
        (5, 130, 64),
        (1, 1, 1),
        (35, 136, 40),
        (133, 72, 24),
        (20, 1100, 24),
        (40, 64, 48),
        (300, 40, 12),
        (3, 2080, 5),
        (2, 7, 2080),
    ):
        inputs = (
            normal(rng, num_tokens, hidden_size),
            weight(rng, intermediate_size, hidden_size),
            weight(rng, intermediate_size, hidden_size),
        )
        yield Sample(f"T{num_tokens}_D{hidden_size}_I{intermediate_size}", inputs)


GATE_UP_SILU = Operator(
    schema=OperatorSchema.parse("gate_up_silu(x: F[T, D], w_gate: W[I, D], w_up: W[I, D]) -> (out: F[T, I])"),
    summary="silu(x @ w_gate.T) * (x @ w_up.T).",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=gate_up_magnitudes,
    # The gate and silu of it may be rounded on one side, up on the other.
    tolerances=accumulated(inner_roundings=2),
)
