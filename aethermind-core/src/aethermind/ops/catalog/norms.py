"""Norms over the last dim: RMSNorm and LayerNorm, and forms that are fused with an addition or a gate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog.activations import sigmoid
from aethermind.ops.operator import ONE_ROUNDING, Array, Operator, Sample, accumulated
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["ADD_RMS_NORM", "GATED_RMS_NORM", "LAYER_NORM", "RMS_NORM"]


def _rms_norm_reference(x: Array, weight: Array, *, eps: float, weight_offset: float) -> Array:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * (weight_offset + weight)


def _rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 896), (0, 16), (5, 2, 80), (4, 7, 8), (17, 33), (2, 1), (300, 9), (2, 2080), (1, 8200)):
        inputs = (normal(rng, *shape), normal(rng, shape[-1]))
        yield Sample("x".join(map(str, shape)), inputs, {"eps": 1e-6})
    yield Sample("zeros", (np.zeros((2, 5)), normal(rng, 5)), {"eps": 1e-5})
    yield Sample("small_against_eps", (normal(rng, 2, 19) * 1e-3, normal(rng, 19)), {"eps": 1e-5})
    for shape in ((3, 7), (5, 2, 80), (1, 640)):
        inputs = (normal(rng, *shape), normal(rng, shape[-1]) * 0.1)
        yield Sample(f"{'x'.join(map(str, shape))}_offset", inputs, {"eps": 1e-6, "weight_offset": 1.0})


RMS_NORM = Operator(
    schema=OperatorSchema.parse(
        "rms_norm(x: F[..., D], weight: F[D]; eps: float, weight_offset: float = 0.0) -> (out: F[..., D] ~ x)"
    ),
    summary="x / sqrt(mean(x²) + eps) * (weight_offset + weight) over the last dim, rounded to F once at the end.",
    reference=_rms_norm_reference,
    samples=_rms_norm_samples,
    tolerances=ONE_ROUNDING,
    additions=("weight_offset",),
)
"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467); Gemma stores weights that are 1 less."""


def _add_rms_norm_decompose(
    b: OpBuilder[Array], x: Array, residual: Array, weight: Array, *, eps: float, weight_offset: float
) -> tuple[Array, Array]:
    total = b.op("add", x, residual)
    return b.op("rms_norm", total, weight, eps=eps, weight_offset=weight_offset), total


def _add_rms_norm_term_magnitudes(
    x: Array, residual: Array, weight: Array, *, eps: float, weight_offset: float
) -> tuple[Array, Array]:
    total = x + residual
    normed = _rms_norm_reference(total, weight, eps=eps, weight_offset=weight_offset)
    return np.abs(normed), np.abs(total)


def _add_rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 896), (0, 16), (4, 3, 10), (17, 33), (2, 1), (300, 9), (2, 2080), (1, 8200)):
        inputs = (normal(rng, *shape), normal(rng, *shape), normal(rng, shape[-1]))
        yield Sample("x".join(map(str, shape)), inputs, {"eps": 1e-6})
    for shape in ((3, 7), (1, 640)):
        inputs = (normal(rng, *shape), normal(rng, *shape), normal(rng, shape[-1]) * 0.1)
        yield Sample(f"{'x'.join(map(str, shape))}_offset", inputs, {"eps": 1e-6, "weight_offset": 1.0})


ADD_RMS_NORM = Operator(
    schema=OperatorSchema.parse(
        """add_rms_norm(x: F[..., D], residual: F[..., D], weight: F[D]; eps: float, weight_offset: float = 0.0)
        -> (out: F[..., D] ~ x, total: F[..., D] ~ residual)"""
    ),
    summary="total = x + residual, rounded to F; out = rms_norm(total, weight), with the same attributes.",
    decompose=_add_rms_norm_decompose,
    samples=_add_rms_norm_samples,
    term_magnitudes=_add_rms_norm_term_magnitudes,
    # An error in total reaches out twice: through the element and through the mean square.
    tolerances=accumulated(inner_roundings=2),
    additions=("weight_offset",),
)
"""A residual addition and the RMSNorm of its sum, fused; both are outputs."""


def _gated_rms_norm_reference(
    x: Array, gate: Array, weight: Array, *, eps: float, num_groups: int, norm_before_gate: bool
) -> Array:
    factor = gate * sigmoid(gate)
    normed = _rms_norm_groups(x if norm_before_gate else x * factor, eps, num_groups) * weight
    return normed * factor if norm_before_gate else normed


def _rms_norm_groups(x: Array, eps: float, num_groups: int) -> Array:
    groups = x.reshape(*x.shape[:-1], num_groups, x.shape[-1] // num_groups)
    mean_square = np.mean(groups * groups, axis=-1, keepdims=True)
    return (groups / np.sqrt(mean_square + eps)).reshape(x.shape)


def _gated_rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, num_groups in (
        ((3, 6), 2), ((1, 896), 1), ((0, 16), 4), ((5, 2, 80), 1), ((17, 33), 3), ((2, 1), 1), ((300, 9), 1),
        ((2, 2080), 8), ((4, 3, 128), 1), ((1, 8200), 2),
    ):  # fmt: skip
        inputs = (normal(rng, *shape), normal(rng, *shape), normal(rng, shape[-1]))
        label = "x".join(map(str, shape))
        attributes = {"eps": 1e-5, "num_groups": num_groups}
        yield Sample(label, inputs, attributes)
        yield Sample(f"{label}_before_gate", inputs, {**attributes, "norm_before_gate": True})


GATED_RMS_NORM = Operator(
    schema=OperatorSchema.parse(
        """gated_rms_norm(x: F[..., D], gate: F[..., D], weight: F[D]; eps: float, num_groups: int = 1,
        norm_before_gate: bool = False) -> (out: F[..., D] ~ x)"""
    ),
    summary=(
        "y / sqrt(mean(y²) + eps) * weight for y = x * silu(gate), each of num_groups equal parts of the last dim by "
        "its own mean; with norm_before_gate, y = x and the result is multiplied by silu(gate). Rounded to F once."
    ),
    reference=_gated_rms_norm_reference,
    samples=_gated_rms_norm_samples,
    # For very negative gates silu may be zero.
    tolerances=accumulated(absolute=1e-30),
)
"""RMSNorm with a gate: after the scan of Mamba 2 (Dao and Gu 2024) and, norm before gate, after a gated delta rule."""


def _layer_norm_reference(x: Array, weight: Array, bias: Array | None, *, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    out = centred / _standard_deviation(x, eps) * weight
    return out if bias is None else out + bias


def _standard_deviation(x: Array, eps: float) -> Array:
    return np.sqrt(x.var(axis=-1, keepdims=True) + eps)


def _layer_norm_term_magnitudes(x: Array, weight: Array, bias: Array | None, *, eps: float) -> Array:
    uncentred = np.abs(x) + np.abs(x).mean(axis=-1, keepdims=True)
    out = uncentred / _standard_deviation(x, eps) * np.abs(weight)
    return out if bias is None else out + np.abs(bias)


def _layer_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in (
        (3, 7),
        (1, 896),
        (0, 16),
        (5, 2, 80),
        (4, 7, 8),
        (17, 33),
        (2, 1),
        (12,),
        (300, 9),
        (2, 2080),
        (1, 8200),
    ):
        x, weight = normal(rng, *shape), normal(rng, shape[-1])
        label = "x".join(map(str, shape))
        yield Sample(label, (x, weight, None), {"eps": 1e-6})
        yield Sample(f"{label}_bias", (x, weight, normal(rng, shape[-1])), {"eps": 1e-5})
    yield Sample("zeros", (np.zeros((2, 5)), normal(rng, 5), normal(rng, 5)), {"eps": 1e-5})
    yield Sample("far_from_zero", (normal(rng, 2, 65) + 30, normal(rng, 65), None), {"eps": 1e-5})
    yield Sample("very_far_from_zero", (normal(rng, 3, 130) + 1000, normal(rng, 130), None), {"eps": 1e-5})
    yield Sample("small_against_eps", (normal(rng, 2, 19) * 1e-3, normal(rng, 19), None), {"eps": 1e-5})


LAYER_NORM = Operator(
    schema=OperatorSchema.parse(
        "layer_norm(x: F[..., D], weight: F[D], bias: F[D]?; eps: float) -> (out: F[..., D] ~ x)"
    ),
    summary="(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dim, rounded to F once at the end.",
    reference=_layer_norm_reference,
    samples=_layer_norm_samples,
    term_magnitudes=_layer_norm_term_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""LayerNorm (Ba et al. 2016, arXiv:1607.06450), with an optional bias."""
