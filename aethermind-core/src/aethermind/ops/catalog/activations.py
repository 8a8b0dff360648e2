"""Activation functions, and softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped, vectors
from aethermind.ops.operator import EXACT, ONE_ROUNDING, Array, Operator, Sample, accumulated
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["CLAMPED_SILU_MUL", "GELU", "RELU", "SIGMOID_MUL", "SILU", "SILU_MUL", "SOFTCAP", "SOFTMAX", "sigmoid"]


def _relu_reference(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("edges", (np.array([-np.inf, -1e4, -1e-6, -0.0, 0.0, 1e-6, 1e4, np.inf]),))


RELU = Operator(
    schema=OperatorSchema.parse("relu(x: F[...]) -> (out: F[...] ~ x)"),
    summary="max(x, 0), element by element.",
    reference=_relu_reference,
    samples=_relu_samples,
    tolerances=EXACT,
)
"""The activation max(x, 0)."""


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow for large |x|."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _silu_reference(x: Array) -> Array:
    return x * sigmoid(x)


def _silu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("saturated", (np.array([-1e4, -200.0, -88.0, -20.0, -0.0, 0.0, 1e-6, 20.0, 88.0, 200.0, 1e4]),))


SILU = Operator(
    schema=OperatorSchema.parse("silu(x: F[...]) -> (out: F[...] ~ x)"),
    summary="x * sigmoid(x), element by element.",
    reference=_silu_reference,
    samples=_silu_samples,
    # For very negative x, exp overflows or is denormal in float32; zero is correct, too.
    tolerances=accumulated(absolute=1e-30),
)
"""The activation x · sigmoid(x)."""


def _sigmoid_mul_reference(gate: Array, x: Array) -> Array:
    return sigmoid(gate) * x


def _sigmoid_mul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)
    gate = np.array([-1e4, -200.0, -88.0, -20.0, -0.0, 0.0, 1e-6, 20.0, 88.0, 200.0, 1e4])
    yield Sample("saturated", (gate, np.linspace(-2, 2, len(gate))))


SIGMOID_MUL = Operator(
    schema=OperatorSchema.parse("sigmoid_mul(gate: F[...], x: F[...]) -> (out: F[...] ~ x)"),
    summary="sigmoid(gate) * x, element by element.",
    reference=_sigmoid_mul_reference,
    samples=_sigmoid_mul_samples,
    # For very negative gates, exp overflows or is denormal in float32; zero is correct, too.
    tolerances=accumulated(absolute=1e-30),
)
"""The gate of gated attention's output (Qiu et al. 2025, arXiv:2505.06708)."""


def _silu_mul_decompose(b: OpBuilder[Array], gate: Array, up: Array) -> Array:
    return b.op("mul", b.op("silu", gate), up)


def _silu_mul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)


SILU_MUL = Operator(
    schema=OperatorSchema.parse("silu_mul(gate: F[...], up: F[...]) -> (out: F[...] ~ gate)"),
    summary="silu(gate) * up, element by element.",
    decompose=_silu_mul_decompose,
    samples=_silu_mul_samples,
    # silu's result is rounded where it is a separate kernel; for very negative x it may be zero, as in silu.
    tolerances=accumulated(inner_roundings=1, absolute=1e-30),
)
"""The gating of SwiGLU: silu of the gate projection times the up projection."""


def _clamped_silu_mul_reference(gate: Array, up: Array, *, alpha: float, limit: float, up_offset: float) -> Array:
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(alpha * gate) * (up + up_offset)


def _clamped_silu_mul_magnitudes(gate: Array, up: Array, *, alpha: float, limit: float, up_offset: float) -> Array:
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.abs(gate) * sigmoid(alpha * gate) * (np.abs(up) + abs(up_offset))


def _clamped_silu_mul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in same_shaped(rng, 2):
        yield Sample(sample.label, sample.inputs)
        yield Sample(f"{sample.label}_clamped", sample.inputs, {"alpha": 1.702, "limit": 1.5, "up_offset": 1.0})


CLAMPED_SILU_MUL = Operator(
    schema=OperatorSchema.parse(
        """clamped_silu_mul(gate: F[...], up: F[...]; alpha: float = 1.0, limit: float = 0.0, up_offset: float = 0.0)
        -> (out: F[...] ~ gate)"""
    ),
    summary=(
        "gate * sigmoid(alpha * gate) * (up + up_offset), element by element; with limit > 0, gate is min(gate, "
        "limit) and up is clamp(up, -limit, limit)."
    ),
    reference=_clamped_silu_mul_reference,
    samples=_clamped_silu_mul_samples,
    term_magnitudes=_clamped_silu_mul_magnitudes,
    # For a very negative gate the result may be zero, as in silu.
    tolerances=accumulated(absolute=1e-30),
)
"""The gating of gpt-oss (OpenAI 2025, arXiv:2508.10925): silu_mul with bounded inputs, a steeper sigmoid, an offset."""


_CUBIC = 0.044715


def _gelu_reference(x: Array, *, approximate: bool) -> Array:
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)))
    return 0.5 * x * _erfc(-x * math.sqrt(0.5))


def _erfc(x: Array) -> Array:
    """Compute 1 - erf(x), which NumPy does not have."""
    return np.fromiter(map(math.erfc, x.ravel().tolist()), x.dtype, x.size).reshape(x.shape)


def _gelu_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    reference=_gelu_reference,
    samples=_gelu_samples,
    # For negative x, 1 + erf(x / √2) cancels.
    tolerances=accumulated(absolute=1e-6),
)
"""The activation x · Φ(x), Φ being the normal distribution function, exact or approximated by tanh."""


def _clamp_reference(x: Array, *, limit: float) -> Array:
    return np.clip(x, -limit, limit)


def _clamp_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in same_shaped(rng, 1):
        yield Sample(sample.label, sample.inputs, {"limit": 0.75})
    wide = np.array([-np.inf, -1e4, -8.0, -7.5, -1.0, -0.0, 0.0, 1e-6, 7.5, 8.0, 1e4, np.inf])
    yield Sample("wide", (wide,), {"limit": 8.0})


CLAMP = Operator(
    schema=OperatorSchema.parse("clamp(x: F[...]; limit: float) -> (out: F[...] ~ x)"),
    summary="min(max(x, -limit), limit), element by element.",
    reference=_clamp_reference,
    samples=_clamp_samples,
    tolerances=ONE_ROUNDING,
)
"""Clamps to ±limit, such as queries, keys and values in MPT and OLMoE (`clip_qkv`)."""


def _softcap_reference(x: Array, *, cap: float) -> Array:
    return cap * np.tanh(x / cap)


def _softcap_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in same_shaped(rng, 1):
        yield Sample(sample.label, sample.inputs, {"cap": 30.0})
    wide = np.array([-np.inf, -1e4, -300.0, -30.0, -1.0, -1e-4, -0.0, 0.0, 1e-6, 0.5, 29.0, 31.0, 1e4, np.inf])
    for cap in (0.5, 50.0):
        yield Sample(f"saturated_{cap:g}", (wide,), {"cap": cap})


SOFTCAP = Operator(
    schema=OperatorSchema.parse("softcap(x: F[...]; cap: float) -> (out: F[...] ~ x)"),
    summary="cap * tanh(x / cap), element by element.",
    reference=_softcap_reference,
    samples=_softcap_samples,
    tolerances=ONE_ROUNDING,
)
"""The soft cap, a smooth clamp to ±cap, such as that of Gemma 2's logits (Gemma Team 2024, arXiv:2408.00118)."""


def _softmax_reference(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _softmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from vectors(rng)
    yield Sample("masked", (np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, -2.0]]),))
    yield Sample("saturated", (np.array([[1e4, 1e4, 0.0], [-1e4, -1e4, -2e4], [0.0, -50.0, -100.0]]),))


SOFTMAX = Operator(
    schema=OperatorSchema.parse("softmax(x: F[..., D]) -> (out: F[..., D] ~ x)"),
    summary="exp(x - max(x)), divided by its sum over the last dim; each vector has a finite element.",
    reference=_softmax_reference,
    samples=_softmax_samples,
    # A weight far below the largest is denormal in float32; zero is correct, too.
    tolerances=accumulated(absolute=1e-30),
)
"""Softmax over the last dim."""
