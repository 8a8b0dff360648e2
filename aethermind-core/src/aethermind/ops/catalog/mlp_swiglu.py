"""The whole feed-forward network of a Llama-like layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.gate_up_silu import gate_up_magnitudes
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["MLP_SWIGLU"]


def _decompose(b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return b.op("linear", b.op("gate_up_silu", x, w_gate, w_up), w_down, None)


def _term_magnitudes(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return gate_up_magnitudes(x, w_gate, w_up) @ np.abs(w_down).T


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, hidden_size, intermediate_size in (
        (3, 7, 5),
        (1, 64, 33),
        (0, 8, 16),
        (17, 33, 47),
        (5, 48, 130),
        (1, 1, 1),
        (300, 9, 12),
        (3, 2080, 5),
        (2, 7, 2080),
    ):
        inputs = (
            normal(rng, num_tokens, hidden_size),
            weight(rng, intermediate_size, hidden_size),
            weight(rng, intermediate_size, hidden_size),
            weight(rng, hidden_size, intermediate_size),
        )
        yield Sample(f"T{num_tokens}_D{hidden_size}_I{intermediate_size}", inputs)


MLP_SWIGLU = Operator(
    schema=OperatorSchema.parse(
        "mlp_swiglu(x: F[T, D], w_gate: W[I, D], w_up: W[I, D], w_down: W[D, I]) -> (out: F[T, D])"
    ),
    summary="(silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T.",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # As gate_up_silu, and its result may be rounded too.
    tolerances=accumulated(inner_roundings=3),
)
