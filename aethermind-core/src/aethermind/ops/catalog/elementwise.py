"""Elementwise arithmetic, exponential, logarithm and casts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import broadcast_pairs, normal, same_shaped
from aethermind.ops.operator import BROADCASTING, EXACT, ONE_ROUNDING, Array, Operator, Sample, accumulated
from aethermind.ops.schema import FLOAT_DTYPES, OpBuilder, OperatorSchema
from aethermind.ops.shape_inference import broadcast, known_sizes

__all__ = ["ADD", "CAST", "DIV", "EXP", "LOG", "MUL", "SCALE", "SUB"]


def _with_expanded_inputs(name: str, builder: OpBuilder[Any], a: Any, b: Any) -> Any:
    """Apply the operator of this name after its inputs were expanded to one shape."""
    shape = broadcast(tuple(a.shape), tuple(b.shape))
    assert shape is not None, "the inputs fit the schema"
    expanded = [
        value if tuple(value.shape) == shape else builder.op("expand", value, shape=known_sizes(shape))
        for value in (a, b)
    ]
    if any(tuple(value.shape) != shape for value in expanded):
        raise OperatorError(f"Operator {name}: a dim of 1 cannot be expanded to one that is known only at run time.")
    return builder.op(name, *expanded)


def _add_reference(a: Array, b: Array) -> Array:
    return a + b


def _add_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)
    yield from broadcast_pairs(rng)
    yield Sample("zeros", (np.array([0.0, -0.0, 0.0, 2.0, 0.0]), np.array([1.0, 2.0, 0.0, 0.0, -3.0])))


ADD = Operator(
    schema=OperatorSchema.parse("add(a: F[#...], b: F[#...]) -> (out: F[...] ~ a)"),
    summary="a + b, element by element, with broadcasting.",
    reference=_add_reference,
    samples=_add_samples,
    tolerances=ONE_ROUNDING,
    additions=(BROADCASTING,),
    without_additions=partial(_with_expanded_inputs, "add"),
)
"""The sum of two tensors, such as a residual and a branch, or activations and a bias."""


def _sub_reference(a: Array, b: Array) -> Array:
    return a - b


def _sub_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)
    yield from broadcast_pairs(rng)


SUB = Operator(
    schema=OperatorSchema.parse("sub(a: F[#...], b: F[#...]) -> (out: F[...] ~ a)"),
    summary="a - b, element by element, with broadcasting.",
    reference=_sub_reference,
    samples=_sub_samples,
    tolerances=ONE_ROUNDING,
    additions=(BROADCASTING,),
    without_additions=partial(_with_expanded_inputs, "sub"),
)
"""The difference of two tensors, element by element."""


def _mul_reference(a: Array, b: Array) -> Array:
    return a * b


def _mul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2)
    yield from broadcast_pairs(rng)


MUL = Operator(
    schema=OperatorSchema.parse("mul(a: F[#...], b: F[#...]) -> (out: F[...] ~ a)"),
    summary="a * b, element by element, with broadcasting.",
    reference=_mul_reference,
    samples=_mul_samples,
    tolerances=ONE_ROUNDING,
    additions=(BROADCASTING,),
    without_additions=partial(_with_expanded_inputs, "mul"),
)
"""The product of two tensors, element by element."""


def _div_reference(a: Array, b: Array) -> Array:
    with np.errstate(divide="ignore"):
        return a / b


def _away_from_zero(rng: np.random.Generator, *shape: int) -> Array:
    x = normal(rng, *shape)
    return x + np.copysign(0.1, x)


def _div_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 2, _away_from_zero)
    yield from broadcast_pairs(rng, _away_from_zero)
    yield Sample("by_zero", (np.array([1.0, -1.0, 1.0, 0.0]), np.array([0.0, 0.0, -0.0, 2.0])))


DIV = Operator(
    schema=OperatorSchema.parse("div(a: F[#...], b: F[#...]) -> (out: F[...] ~ a)"),
    summary="a / b, element by element, with broadcasting; infinite where b is zero and a is not.",
    reference=_div_reference,
    samples=_div_samples,
    tolerances=ONE_ROUNDING,
    additions=(BROADCASTING,),
    without_additions=partial(_with_expanded_inputs, "div"),
)
"""The quotient of two tensors, element by element."""


def _scale_reference(x: Array, *, factor: float) -> Array:
    return x * factor


def _scale_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for factor, sample in zip((25.25, -0.5, 1.0, 0.0, 1e-3, 3.0, 0.1, 0.22), same_shaped(rng, 1), strict=True):
        yield Sample(sample.label, sample.inputs, {"factor": factor})


SCALE = Operator(
    schema=OperatorSchema.parse("scale(x: F[...]; factor: float) -> (out: F[...] ~ x)"),
    summary="x * factor, element by element.",
    reference=_scale_reference,
    samples=_scale_samples,
    tolerances=ONE_ROUNDING,
)
"""A tensor times one number, such as embeddings times the square root of the hidden size (Gemma)."""


def _exp_reference(x: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x)


def _exp_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1)
    yield Sample("saturated", (np.array([-np.inf, -1e4, -200.0, -88.0, -10.0, -0.0, 0.0, 1e-6, 10.0, 1e4, np.inf]),))


EXP = Operator(
    schema=OperatorSchema.parse("exp(x: F[...]) -> (out: F[...] ~ x)"),
    summary="e to the power of x, element by element.",
    reference=_exp_reference,
    samples=_exp_samples,
    # For very negative x the result is denormal in float32; zero is correct, too.
    tolerances=accumulated(absolute=1e-30),
)
"""The exponential function."""


def _log_reference(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(x)


def _positive(rng: np.random.Generator, *shape: int) -> Array:
    return np.exp(2 * normal(rng, *shape))


def _log_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from same_shaped(rng, 1, _positive)
    yield Sample("edges", (np.array([0.0, 1e-4, 0.5, 0.99, 1.0, 1.01, 2.0, 6e4, np.inf]),))


LOG = Operator(
    schema=OperatorSchema.parse("log(x: F[...]) -> (out: F[...] ~ x)"),
    summary="The natural logarithm of x >= 0, element by element; log(0) is -inf.",
    reference=_log_reference,
    samples=_log_samples,
    # Around x = 1 the result is near zero, so a relative bound alone is too strict.
    tolerances=accumulated(absolute=1e-6),
)
"""The natural logarithm."""


def _cast_reference(x: Array, *, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype.numpy).astype(x.dtype)


def _cast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    edges = [0.0, -0.0, 1.0, 2.0**-24, 3 * 2.0**-26, 2.0**-126, -(2.0**-133), 65504.0, 65519.0, 65520.0, -7e4, 3.3e38]
    ties = 1 + np.arange(24) * 2.0**-12
    for dtype in FLOAT_DTYPES:
        for sample in same_shaped(rng, 1):
            yield Sample(f"{sample.label}_to_{dtype}", sample.inputs, {"dtype": dtype})
        for label, values in (("edges", edges), ("infinite", [np.inf, -np.inf]), ("ties", ties)):
            yield Sample(f"{label}_to_{dtype}", (np.array(values),), {"dtype": dtype})


CAST = Operator(
    schema=OperatorSchema.parse("cast(x: F[...]; dtype: dtype) -> (out: dtype[...])"),
    summary="x in another floating-point type, rounded to nearest, ties to even; infinite beyond its range.",
    reference=_cast_reference,
    samples=_cast_samples,
    tolerances=EXACT,
)
"""A change of the floating-point type, such as to float32 before the output projection."""
