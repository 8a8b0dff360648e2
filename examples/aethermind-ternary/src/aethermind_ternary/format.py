"""Weights of -1, 0 and 1 with a scale for each row (BitNet b1.58: Ma et al. 2024, arXiv:2402.17764)."""

from __future__ import annotations

from typing import Any

import numpy as np

from aethermind.errors import InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = ["PER_BYTE", "TERNARY", "Ternary"]

PER_BYTE = 5
"""Ternary digits per byte: 3⁵ = 243."""
_SCALE_BYTES = 2


class Ternary(WeightFormat):
    """The ternary format: a row's scale is its mean magnitude; a code is the value over the scale, rounded and
    clipped.
    """

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a weight [N, K]: 1.6 bits per value, and a scale per row."""
        rows, columns = shape
        return rows * (-(-columns // PER_BYTE) + _SCALE_BYTES)

    def quantize(self, array: Any) -> QuantizedWeight:
        """Quantise a floating-point array [N, K]; InvalidArgumentError for values that are not finite or too large."""
        values = array.astype(np.float32)
        with np.errstate(over="ignore"):
            scales = np.abs(values).mean(axis=1, keepdims=True).astype(np.float16)
        if not np.isfinite(scales).all():
            raise InvalidArgumentError("A weight with values that are infinite, NaN or too large cannot be ternary.")
        scales_f32 = scales.astype(np.float32)
        codes = np.rint(np.clip(values / np.where(scales_f32 > 0, scales_f32, 1), -1, 1)).astype(np.int8)
        return QuantizedWeight(self, codes, scales)


TERNARY = Ternary("ternary", bits=2, block=0, has_zero_point=False)
"""bits: of a code before it is packed; block 0: one scale per row."""
