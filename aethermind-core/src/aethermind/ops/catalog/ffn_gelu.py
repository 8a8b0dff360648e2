"""The feed-forward network of GPT- and BERT-like layers: linear, gelu, linear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.ffn_relu import ffn_inputs, ffn_magnitudes
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["FFN_GELU"]


def _decompose(
    b: OpBuilder[Array],
    x: Array,
    w_in: Array,
    b_in: Array | None,
    w_out: Array,
    b_out: Array | None,
    *,
    approximate: bool,
) -> Array:
    activated = b.op("gelu", b.op("linear", x, w_in, b_in), approximate=approximate)
    return b.op("linear", activated, w_out, b_out)


def _term_magnitudes(x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None, **_: bool) -> Array:
    return ffn_magnitudes(x, w_in, b_in, w_out, b_out)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, inputs in ffn_inputs(rng):
        yield Sample(label, inputs)
        yield Sample(f"{label}_approximate", inputs, {"approximate": True})


FFN_GELU = Operator(
    schema=OperatorSchema.parse(
        """ffn_gelu(x: F[T, D], w_in: W[I, D], b_in: F[I]?, w_out: W[D, I], b_out: F[D]?; approximate: bool = False)
        -> (out: F[T, D])"""
    ),
    summary="gelu(x @ w_in.T + b_in) @ w_out.T + b_out, with gelu's exact or approximate form.",
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # The product and its gelu may both be rounded, and gelu is steeper than one, by up to 1.13.
    tolerances=accumulated(inner_roundings=3),
)
