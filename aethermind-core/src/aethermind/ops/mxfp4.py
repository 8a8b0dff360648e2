"""The definition of the weight format mxfp4, in NumPy: elements E2M1 with a scale E8M0 for each 32 of a row.

Source: OCP Microscaling Formats (MX) Specification, version 1.0. A code is a sign bit and three bits of a magnitude, 0,
0.5, 1, 1.5, 2, 3, 4 or 6; a scale is the biased exponent of a power of two, 2^(scale − 127), from 0 to 252. The numbers
253 and 254 are refused, since they reach beyond float32, and 255 stands for NaN.

Checkpoints hold two codes in a byte: neighbours in safetensors (gpt-oss), values 16 apart in GGUF's blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.errors import InvalidArgumentError
from aethermind.ops.quantization import Codes, row_chunks

if TYPE_CHECKING:
    from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["E2M1", "check_scales", "dequantize_mxfp4", "encode_mxfp4"]

Array = NDArray[Any]

_BLOCK = 32
_BIAS = 127
_MAX_SCALE = 252
"""6 · 2^(252 − 127) is the largest multiple of an element in float32."""
_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])
"""The elements by their codes."""
_MAX_EXPONENT = 2
"""The exponent of the largest element."""
_MIDDLES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / np.float32(2)
_TO_EVEN = np.array([False, True, False, True, False, True, False])
"""Whether a magnitude in the middle between two elements is rounded up, to the one with an even code."""


def encode_mxfp4(array: Array) -> Codes:
    """Quantise a floating-point array [N, K] as section 6.3 of the specification; magnitudes that are too large for a
    block's scale become 6. InvalidArgumentError for values that are not finite.
    """
    rows, columns = array.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, -(-columns // _BLOCK)), np.uint8)
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        if not np.isfinite(values).all():
            raise InvalidArgumentError("Values that are not finite cannot be stored as mxfp4.")
        scales[chunk], codes[chunk] = _encode(values)
    return Codes(codes, scales)


def dequantize_mxfp4(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """Return the values [N, K] of a weight: exact in float32, rounded to a narrower `dtype`."""
    rows, columns = weight.shape
    values = np.empty((rows, columns), dtype)
    for chunk in row_chunks(weight.shape):
        part = weight.rows(chunk.start, chunk.stop)
        values[chunk] = E2M1[part.codes] * _by_column(part.scales, columns)
    return values


def _encode(values: Array) -> tuple[Array, Array]:
    """Return scales and codes of float32 values [n, K]."""
    magnitudes = np.abs(values)
    largest = np.maximum.reduceat(magnitudes, np.arange(0, values.shape[1], _BLOCK), axis=1)
    exponents = np.frexp(largest)[1] - 1 - _MAX_EXPONENT  # of zero, -3: any scale is right
    scales = np.clip(exponents + _BIAS, 0, _MAX_SCALE).astype(np.uint8)
    multiples = magnitudes / _by_column(scales, values.shape[1])
    codes = np.zeros(values.shape, np.uint8)
    for middle, is_rounded_up in zip(_MIDDLES, _TO_EVEN, strict=True):
        codes += multiples >= middle if is_rounded_up else multiples > middle
    return scales, codes | np.signbit(values).astype(np.uint8) << 3


def _by_column(scales: Array, columns: int) -> Array:
    """Return scales as float32, one for each value."""
    powers: Array = np.ldexp(np.float32(1), scales.astype(np.int32) - _BIAS)
    return np.repeat(powers, _BLOCK, axis=1)[:, :columns]


def check_scales(scales: Array) -> None:
    """Raise InvalidArgumentError for a scale that stands for NaN, or with which elements reach beyond float32."""
    if scales.size and scales.max() > _MAX_SCALE:
        raise InvalidArgumentError(
            f"A scale of {scales.max()} cannot be read as mxfp4: 255 is NaN, and more than {_MAX_SCALE} are "
            "beyond float32."
        )
