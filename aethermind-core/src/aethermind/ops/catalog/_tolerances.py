"""The tolerances that operators have in common: exact, one rounding of the output, or inner roundings as well."""

from __future__ import annotations

from collections.abc import Mapping

from aethermind.hal.dtype import DType
from aethermind.ops.operator import Tolerance

__all__ = ["EXACT", "ONE_ROUNDING", "accumulated", "float32_only"]

_ACCUMULATION = 1e-5
"""Relative to the sum of the terms' magnitudes: float32 sums in any order, of any length that a model has."""

_UNIT_ROUNDOFF = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
_SMALLEST = {DType.BFLOAT16: 2.0**-133, DType.FLOAT16: 2.0**-24}
"""The smallest positive value (denormal): below it the rounding error is absolute."""

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
    """Return tolerances for operators whose floats are always float32."""
    return {DType.FLOAT32: Tolerance(relative_to_terms=relative_to_terms)}
