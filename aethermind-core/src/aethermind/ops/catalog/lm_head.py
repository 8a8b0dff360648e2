"""The projection to the vocabulary; its output stays float32, because sampling compares close logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.operator import Array, Operator, Sample, Tolerance
from aethermind.ops.schema import OperatorSchema

__all__ = ["LM_HEAD"]

_FLOAT32_SUM = Tolerance(relative_to_terms=1e-5)


def _reference(x: Array, weight: Array) -> Array:
    return x @ weight.T


def _by_row(x: Array, weight: Array) -> Array:
    return (x[..., None, :] @ weight.T)[..., 0, :]


def _term_magnitudes(x: Array, weight: Array) -> Array:
    return np.abs(x) @ np.abs(weight).T


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
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
        yield Sample(f"R{num_rows}_N{vocab_size}_K{num_inputs}", inputs)


LM_HEAD = Operator(
    schema=OperatorSchema.parse("lm_head(x: F[R, K], weight: W[N, K]) -> (logits: f32[R, N])"),
    summary="x @ weight.T with float32 logits, whatever F is.",
    reference=_reference,
    by_row=_by_row,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # The output is float32 for every F, so no rounding to F may show.
    tolerances=dict.fromkeys((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), _FLOAT32_SUM),
)
