"""The feed-forward network of the first transformers: linear, relu, linear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.linear import linear_magnitudes
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["FFN_RELU", "ffn_inputs", "ffn_magnitudes"]


def _decompose(
    b: OpBuilder[Array], x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None
) -> Array:
    return b.op("linear", b.op("relu", b.op("linear", x, w_in, b_in)), w_out, b_out)


def ffn_magnitudes(x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None) -> Array:
    """The sum of the magnitudes of the terms of every output, for an activation that never enlarges."""
    return linear_magnitudes(linear_magnitudes(x, w_in, b_in), w_out, b_out)


def ffn_inputs(rng: np.random.Generator) -> Iterator[tuple[str, tuple[Array | None, ...]]]:
    """Labelled inputs of a feed-forward network of two matrices, with and without biases."""
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
        x = normal(rng, num_tokens, hidden_size)
        w_in, w_out = weight(rng, intermediate_size, hidden_size), weight(rng, hidden_size, intermediate_size)
        label = f"T{num_tokens}_D{hidden_size}_I{intermediate_size}"
        yield label, (x, w_in, None, w_out, None)
        yield f"{label}_bias", (x, w_in, normal(rng, intermediate_size), w_out, normal(rng, hidden_size))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, inputs in ffn_inputs(rng):
        yield Sample(label, inputs)


FFN_RELU = Operator(
    schema=OperatorSchema.parse(
        """ffn_relu(x: F[T, D], w_in: W[I, D], b_in: F[I]?, w_out: W[D, I], b_out: F[D]?) -> (out: F[T, D])"""
    ),
    summary="relu(x @ w_in.T + b_in) @ w_out.T + b_out.",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=ffn_magnitudes,
    # What the first product gives may be rounded; relu keeps it as it is.
    tolerances=accumulated(inner_roundings=1),
)
