"""Steps one and three: the definition of `geglu`, and its decomposition for devices without a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aethermind.hal import DType
from aethermind.ops import OpBuilder, Operator, OperatorSchema, Sample, Tolerance

__all__ = ["GEGLU", "gelu"]


def gelu(x: Any) -> Any:
    """gelu with the tanh approximation (Hendrycks and Gimpel 2016), in the float type of x."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x * x * x)))


def _reference(gate: Any, up: Any) -> Any:
    return gelu(gate) * up


def _decompose(b: OpBuilder[Any], gate: Any, up: Any) -> Any:
    return b.op("mul", b.op("gelu", gate, approximate=True), up)


def _magnitudes(gate: Any, up: Any) -> Any:
    """Magnitudes for tolerances: below zero 1 + tanh cancels, so the error is relative to |gate|."""
    return np.abs(gate * up)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 33), (0, 8), (17, 64)):
        yield Sample("x".join(map(str, shape)), (2 * rng.standard_normal(shape), rng.standard_normal(shape)))
    yield Sample("saturated", (np.array([[-40.0, -6.0, -0.0, 0.0, 6.0, 40.0]]), np.ones((1, 6))))


GEGLU = Operator(
    schema=OperatorSchema.parse("geglu(gate: F[T, I], up: F[T, I]) -> (out: F[T, I] ~ gate)"),
    summary="gelu(gate) · up, element by element, gelu in its form by tanh (Shazeer 2020, arXiv:2002.05202).",
    reference=_reference,
    decompose=_decompose,
    samples=_samples,
    term_magnitudes=_magnitudes,
    # The decomposition rounds twice.
    tolerances={
        DType.FLOAT32: Tolerance(relative_to_terms=1e-6),
        DType.BFLOAT16: Tolerance(relative_to_terms=2.0**-7),
        DType.FLOAT16: Tolerance(relative_to_terms=2.0**-10, absolute=2.0**-23),
    },
)
