"""Matrix products: with a weight, with the vocabulary projection, and of two activations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import ONE_ROUNDING
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample, Tolerance
from aethermind.ops.schema import OperatorSchema

__all__ = ["LINEAR", "LM_HEAD", "MATMUL", "linear_magnitudes"]


def _linear_reference(x: Array, weight: Array, bias: Array | None) -> Array:
    product = x @ weight.T
    return product if bias is None else product + bias


def _linear_by_row(x: Array, weight: Array, bias: Array | None) -> Array:
    product = (x[:, None] @ weight.T)[:, 0]
    return product if bias is None else product + bias


def linear_magnitudes(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return the sum of the magnitudes of the terms of every output, for operators that contain a matrix product."""
    return _linear_reference(np.abs(x), np.abs(weight), None if bias is None else np.abs(bias))


def _linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
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
    reference=_linear_reference,
    by_row=_linear_by_row,
    samples=_linear_samples,
    term_magnitudes=linear_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""A product with a weight stored as [outputs, inputs], plus an optional bias."""


_FLOAT32_SUM = Tolerance(relative_to_terms=1e-5)


def _lm_head_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_rows, vocab_size, num_inputs in (
        (2, 11, 7),
        (1, 301, 64),
        (0, 16, 8),
        (5, 33, 130),
        (16, 128, 96),
        (1, 1, 1),
        (35, 40, 136),
        (133, 24, 72),
        (40, 70, 33),
        (300, 9, 20),
        (3, 5, 2080),
        (2, 66_001, 8),
    ):
        inputs = (normal(rng, num_rows, num_inputs), weight(rng, vocab_size, num_inputs))
        yield Sample(f"R{num_rows}_N{vocab_size}_K{num_inputs}", (*inputs, None))
    for num_rows, vocab_size, num_inputs in ((1, 33, 65), (5, 40, 130), (40, 70, 33)):
        biased = (normal(rng, num_rows, num_inputs), weight(rng, vocab_size, num_inputs), normal(rng, vocab_size))
        yield Sample(f"R{num_rows}_N{vocab_size}_K{num_inputs}_bias", biased)


LM_HEAD = Operator(
    schema=OperatorSchema.parse("lm_head(x: F[R, K], weight: W[N, K], bias: F[N]?) -> (logits: f32[R, N])"),
    summary="x @ weight.T + bias with float32 logits, whatever F is.",
    reference=_linear_reference,
    by_row=_linear_by_row,
    samples=_lm_head_samples,
    term_magnitudes=linear_magnitudes,
    # The output is float32 for every F: no rounding to F is allowed.
    tolerances=dict.fromkeys((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), _FLOAT32_SUM),
    additions=("bias",),
)
"""The projection to the vocabulary. Logits are float32 whatever F is, because sampling compares close logits."""


def _matmul_reference(a: Array, b: Array) -> Array:
    return a @ b


def _matmul_by_row(a: Array, b: Array) -> Array:
    return (a[..., :, None, :] @ b[..., None, :, :])[..., 0, :]


def _matmul_term_magnitudes(a: Array, b: Array) -> Array:
    return np.abs(a) @ np.abs(b)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
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


def _matmul_cost(call: Call) -> Cost:
    flops = 2 * prod(call.shape("out")) * call.shape("a")[-1]
    return Cost(call.bytes_in("a", "b"), call.bytes_out("out"), flops)


MATMUL = Operator(
    schema=OperatorSchema.parse("matmul(a: F[..., M, K], b: F[..., K, N]) -> (out: F[..., M, N])"),
    summary="a @ b over the last two dims, summed in float32.",
    reference=_matmul_reference,
    by_row=_matmul_by_row,
    samples=_matmul_samples,
    term_magnitudes=_matmul_term_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_matmul_cost,
)
"""The batched matrix product of two activations."""
