"""Tolerances shared by operators: exact, output rounding only, or also rounding of intermediate results."""

from __future__ import annotations

from collections.abc import Mapping

from aethermind.hal.dtype import DType
from aethermind.ops.operator import Tolerance

__all__ = ["EXACT", "ONE_ROUNDING", "accumulated", "float32_only"]

_ACCUMULATION = 1e-5
"""Error bound of a float32 sum in any order, relative to the sum of the terms' magnitudes."""

_UNIT_ROUNDOFF = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
_SMALLEST = {DType.BFLOAT16: 2.0**-133, DType.FLOAT16: 2.0**-24}
"""Smallest positive (subnormal) value: an absolute error bound for results that underflow."""

EXACT: Mapping[DType, Tolerance] = {dtype: Tolerance() for dtype in (DType.FLOAT32, *_UNIT_ROUNDOFF)}
"""For operators that only move data."""


def accumulated(*, inner_roundings: int = 0, absolute: float = 0.0) -> Mapping[DType, Tolerance]:
    """Return tolerances for float32 sums with `inner_roundings` to F before the output's, relative to the terms."""
    tolerances = {DType.FLOAT32: Tolerance(relative_to_terms=_ACCUMULATION, absolute=absolute)}
    for dtype, roundoff in _UNIT_ROUNDOFF.items():
        tolerances[dtype] = Tolerance(
            relative_to_terms=_ACCUMULATION + inner_roundings * roundoff,
            relative=roundoff,
            absolute=max(absolute, _SMALLEST[dtype]),
        )
    return tolerances


ONE_ROUNDING: Mapping[DType, Tolerance] = accumulated()


def float32_only(relative_to_terms: float = _ACCUMULATION) -> Mapping[DType, Tolerance]:
    """Return tolerances for operators that compute and return float32 only."""
    return {DType.FLOAT32: Tolerance(relative_to_terms=relative_to_terms)}
