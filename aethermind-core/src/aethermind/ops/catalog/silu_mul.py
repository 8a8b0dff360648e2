"""The gate of a SwiGLU: silu of one branch times the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import same_shaped
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["SILU_MUL"]


def _decompose(b: OpBuilder[Array], gate: Array, up: Array) -> Array:
    return b.op("mul", b.op("silu", gate), up)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)


SILU_MUL = Operator(
    schema=OperatorSchema.parse("silu_mul(gate: F[...], up: F[...]) -> (out: F[...] ~ gate)"),
    summary="silu(gate) * up, element by element.",
    decompose=_decompose,
    samples=_samples,
    # silu's result is rounded where it is a kernel of its own; far left it may be zero, as in silu.
    tolerances=accumulated(inner_roundings=1, absolute=1e-30),
)
