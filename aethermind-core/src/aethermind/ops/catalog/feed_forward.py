"""Feed-forward networks of transformer layers, and their first halves; they decompose into linear and activation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog.activations import sigmoid
from aethermind.ops.catalog.matrix_products import linear_magnitudes
from aethermind.ops.operator import Array, Operator, Sample, accumulated
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = [
    "FFN_GELU",
    "FFN_RELU",
    "GATE_UP_GELU",
    "GATE_UP_SILU",
    "MLP_GEGLU",
    "MLP_SWIGLU",
    "ffn_inputs",
    "ffn_magnitudes",
    "gate_up_magnitudes",
]

_MAX_SLOPE = 1.1
"""An upper bound of silu's derivative: silu multiplies an error of the gate projection by at most this factor."""

_MAX_GELU_SLOPE = 1.13
"""An upper bound of the derivative of both forms of gelu."""


def _gate_up_silu_decompose(b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array) -> Array:
    return b.op("silu_mul", b.op("linear", x, w_gate, None), b.op("linear", x, w_up, None))


def gate_up_magnitudes(x: Array, w_gate: Array, w_up: Array) -> Array:
    """Return the term magnitudes of silu(gate) · up: a first-order bound of what errors in both products change."""
    gate, up = x @ w_gate.T, x @ w_up.T
    from_gate = _MAX_SLOPE * linear_magnitudes(x, w_gate, None) * np.abs(up)
    return from_gate + np.abs(gate * sigmoid(gate)) * linear_magnitudes(x, w_up, None)


def _gate_up_silu_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
        (12, 1104, 24),
        (20, 64, 48),
        (100, 840, 20),
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
    decompose=_gate_up_silu_decompose,
    samples=_gate_up_silu_samples,
    term_magnitudes=gate_up_magnitudes,
    # The gate product and its silu may be rounded, and so may the up product.
    tolerances=accumulated(inner_roundings=2),
)
"""The first half of a SwiGLU network: gate and up projections, and the gating."""


def _mlp_swiglu_decompose(b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return b.op("linear", b.op("gate_up_silu", x, w_gate, w_up), w_down, None)


def _mlp_swiglu_term_magnitudes(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    return gate_up_magnitudes(x, w_gate, w_up) @ np.abs(w_down).T


def _mlp_swiglu_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    decompose=_mlp_swiglu_decompose,
    samples=_mlp_swiglu_samples,
    term_magnitudes=_mlp_swiglu_term_magnitudes,
    # The roundings of gate_up_silu, and that of its result.
    tolerances=accumulated(inner_roundings=3),
)
"""The SwiGLU feed-forward network (Shazeer 2020, arXiv:2002.05202) of a Llama-like layer."""


def _gate_up_gelu_decompose(b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array, *, approximate: bool) -> Array:
    gate = b.op("gelu", b.op("linear", x, w_gate, None), approximate=approximate)
    return b.op("mul", gate, b.op("linear", x, w_up, None))


def _gate_up_gelu_magnitudes(x: Array, w_gate: Array, w_up: Array, **_: bool) -> Array:
    """Return the term magnitudes of gelu(gate) · up: a first-order bound of what errors in both products change."""
    gate, up = x @ w_gate.T, x @ w_up.T
    from_gate = _MAX_GELU_SLOPE * linear_magnitudes(x, w_gate, None) * np.abs(up)
    return from_gate + np.abs(gate) * linear_magnitudes(x, w_up, None)


def _with_both_gelus(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        yield Sample(f"{sample.label}_approximate", sample.inputs, {"approximate": True})


def _gate_up_gelu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    return _with_both_gelus(_gate_up_silu_samples(rng))


GATE_UP_GELU = Operator(
    schema=OperatorSchema.parse(
        """gate_up_gelu(x: F[T, D], w_gate: W[I, D], w_up: W[I, D]; approximate: bool = False) -> (out: F[T, I])"""
    ),
    summary="gelu(x @ w_gate.T) * (x @ w_up.T), with gelu's exact or approximate form.",
    decompose=_gate_up_gelu_decompose,
    samples=_gate_up_gelu_samples,
    term_magnitudes=_gate_up_gelu_magnitudes,
    # The gate product and its gelu may be rounded, and so may the up product.
    tolerances=accumulated(inner_roundings=2, absolute=1e-5),
)
"""The first half of a GeGLU network: gate and up projections, and the gating."""


def _mlp_geglu_decompose(
    b: OpBuilder[Array], x: Array, w_gate: Array, w_up: Array, w_down: Array, *, approximate: bool
) -> Array:
    return b.op("linear", b.op("gate_up_gelu", x, w_gate, w_up, approximate=approximate), w_down, None)


def _mlp_geglu_magnitudes(x: Array, w_gate: Array, w_up: Array, w_down: Array, **_: bool) -> Array:
    return _gate_up_gelu_magnitudes(x, w_gate, w_up) @ np.abs(w_down).T


def _mlp_geglu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    return _with_both_gelus(_mlp_swiglu_samples(rng))


MLP_GEGLU = Operator(
    schema=OperatorSchema.parse(
        """mlp_geglu(x: F[T, D], w_gate: W[I, D], w_up: W[I, D], w_down: W[D, I]; approximate: bool = False)
        -> (out: F[T, D])"""
    ),
    summary="(gelu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T, with gelu's exact or approximate form.",
    decompose=_mlp_geglu_decompose,
    samples=_mlp_geglu_samples,
    term_magnitudes=_mlp_geglu_magnitudes,
    # The roundings of gate_up_gelu, and that of its result.
    tolerances=accumulated(inner_roundings=3, absolute=1e-5),
)
"""The GeGLU feed-forward network (Shazeer 2020, arXiv:2002.05202) of Gemma's layers."""


def _ffn_relu_decompose(
    b: OpBuilder[Array], x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None
) -> Array:
    return b.op("linear", b.op("relu", b.op("linear", x, w_in, b_in)), w_out, b_out)


def ffn_magnitudes(x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None) -> Array:
    """Return the sum of the magnitudes of the terms of every output, for an activation with |f(x)| <= |x|."""
    return linear_magnitudes(linear_magnitudes(x, w_in, b_in), w_out, b_out)


def ffn_inputs(rng: np.random.Generator) -> Iterator[tuple[str, tuple[Array | None, ...]]]:
    """Yield labelled inputs of a feed-forward network of two matrices, with and without biases."""
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


def _ffn_relu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, inputs in ffn_inputs(rng):
        yield Sample(label, inputs)


FFN_RELU = Operator(
    schema=OperatorSchema.parse(
        """ffn_relu(x: F[T, D], w_in: W[I, D], b_in: F[I]?, w_out: W[D, I], b_out: F[D]?) -> (out: F[T, D])"""
    ),
    summary="relu(x @ w_in.T + b_in) @ w_out.T + b_out.",
    decompose=_ffn_relu_decompose,
    samples=_ffn_relu_samples,
    term_magnitudes=ffn_magnitudes,
    # The first product may be rounded; relu is exact.
    tolerances=accumulated(inner_roundings=1),
)
"""The feed-forward network of the original transformer: linear, relu, linear."""


def _ffn_gelu_decompose(
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


def _ffn_gelu_term_magnitudes(
    x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None, **_: bool
) -> Array:
    return ffn_magnitudes(x, w_in, b_in, w_out, b_out)


def _ffn_gelu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, inputs in ffn_inputs(rng):
        yield Sample(label, inputs)
        yield Sample(f"{label}_approximate", inputs, {"approximate": True})


FFN_GELU = Operator(
    schema=OperatorSchema.parse(
        """ffn_gelu(x: F[T, D], w_in: W[I, D], b_in: F[I]?, w_out: W[D, I], b_out: F[D]?; approximate: bool = False)
        -> (out: F[T, D])"""
    ),
    summary="gelu(x @ w_in.T + b_in) @ w_out.T + b_out, with gelu's exact or approximate form.",
    decompose=_ffn_gelu_decompose,
    samples=_ffn_gelu_samples,
    term_magnitudes=_ffn_gelu_term_magnitudes,
    # The product and its gelu may both be rounded; gelu's slope is at most 1.13.
    tolerances=accumulated(inner_roundings=3),
)
"""The feed-forward network of GPT- and BERT-like layers: linear, gelu, linear."""
