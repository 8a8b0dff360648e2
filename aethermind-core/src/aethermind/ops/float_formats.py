"""The definitions of the weight formats with floating-point elements, mxfp4 and fp8, in NumPy.

mxfp4 has elements E2M1 with a scale E8M0 for each 32 values of a row (OCP Microscaling Formats (MX) Specification,
version 1.0). A code is a sign bit and three bits of a magnitude, 0, 0.5, 1, 1.5, 2, 3, 4 or 6. A scale is the biased
exponent of a power of two, 2^(scale − 127), from 0 to 252. The numbers 253 and 254 are refused, since products with
them exceed float32, and 255 stands for NaN. Checkpoints hold two codes in a byte: neighbours in safetensors (gpt-oss),
values 16 apart in GGUF's blocks.

fp8 has elements E4M3 with a float32 scale for each row, or for each block of a row (OCP 8-bit Floating Point
Specification (OFP8), version 1.0). Codes are float8_e4m3fn: finite up to 448, without infinities. The scale of a row is
its largest magnitude over 448, as in a quantised KV cache (`quantize_rows`) and in the channel-wise FP8 of
compressed-tensors. Blocks are those of checkpoints such as DeepSeek V3's; the scale of a block of several rows is
repeated for each of these.
Kernels may quantise the inputs of a product in the same way, with one scale for each token (W8A8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.errors import InvalidArgumentError
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._quantized_rows import quantize_rows
from aethermind.ops.quantization import QuantizedArrays, row_chunks

if TYPE_CHECKING:
    from aethermind.ops.weight_format import QuantizedWeight

__all__ = [
    "E2M1",
    "check_fp8_values",
    "check_scales",
    "dequantize_fp8",
    "dequantize_mxfp4",
    "encode_fp8",
    "encode_mxfp4",
]

Array = NDArray[Any]

# mxfp4

_BLOCK = 32
_BIAS = 127
_MAX_SCALE = 252
"""The largest scale with which the largest element, 6, is in float32's range."""
_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])
"""The value of each code."""
_MAX_EXPONENT = 2
"""The exponent of the largest element."""
_MIDDLES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / np.float32(2)
_TO_EVEN = np.array([False, True, False, True, False, True, False])
"""Whether a magnitude in the middle between two elements is rounded up, to the one with an even code."""


def encode_mxfp4(array: Array) -> QuantizedArrays:
    """Quantise a floating-point array [N, K] as in section 6.3 of the specification.

    A magnitude that is too large for its block's scale becomes 6. InvalidArgumentError for values that are not finite.
    """
    rows, columns = array.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, -(-columns // _BLOCK)), np.uint8)
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        if not np.isfinite(values).all():
            raise InvalidArgumentError("Values that are not finite cannot be stored as mxfp4.")
        scales[chunk], codes[chunk] = _encode(values)
    return QuantizedArrays(codes, scales)


def dequantize_mxfp4(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """Return the values [N, K] of a weight: exact in float32, rounded to a narrower `dtype`."""
    rows, columns = weight.shape
    values = np.empty((rows, columns), dtype)
    for chunk in row_chunks(weight.shape):
        rows_of_chunk = weight.rows(chunk.start, chunk.stop)
        values[chunk] = E2M1[rows_of_chunk.codes] * _by_column(rows_of_chunk.scales, columns)
    return values


def _encode(values: Array) -> tuple[Array, Array]:
    """Return scales and codes of float32 values [n, K]."""
    magnitudes = np.abs(values)
    largest = np.maximum.reduceat(magnitudes, np.arange(0, values.shape[1], _BLOCK), axis=1)
    exponents = np.frexp(largest)[1] - 1 - _MAX_EXPONENT  # -3 for zero, whose scale is arbitrary
    scales = np.clip(exponents + _BIAS, 0, _MAX_SCALE).astype(np.uint8)
    multiples = magnitudes / _by_column(scales, values.shape[1])
    codes = np.zeros(values.shape, np.uint8)
    for middle, is_rounded_up in zip(_MIDDLES, _TO_EVEN, strict=True):
        codes += multiples >= middle if is_rounded_up else multiples > middle
    return scales, codes | np.signbit(values).astype(np.uint8) << 3


def _by_column(scales: Array, columns: int) -> Array:
    """Return the scales [n, blocks] as float32, repeated for each value of a block: [n, K]."""
    powers: Array = np.ldexp(np.float32(1), scales.astype(np.int32) - _BIAS)
    return np.repeat(powers, _BLOCK, axis=1)[:, :columns]


def check_scales(scales: Array) -> None:
    """Raise InvalidArgumentError for a scale of mxfp4 that stands for NaN, or with which elements exceed float32."""
    if scales.size and scales.max() > _MAX_SCALE:
        raise InvalidArgumentError(
            f"A scale of {scales.max()} cannot be read as mxfp4: 255 is NaN, and more than {_MAX_SCALE} are "
            "beyond float32."
        )


# fp8


def encode_fp8(array: Array, block: int = 0) -> QuantizedArrays:
    """Quantise a floating-point array [N, K] with a scale for each `block` values of a row, or each row if it is 0.

    InvalidArgumentError for values that are not finite.
    """
    rows, columns = array.shape
    length = block or columns
    num_blocks = -(-columns // length) if columns else 0
    codes = np.zeros((rows, columns), DType.FLOAT8_E4M3FN.numpy)
    scales = np.zeros((rows, num_blocks), np.float32)
    for chunk in row_chunks(array.shape):
        values = np.pad(array[chunk], ((0, 0), (0, num_blocks * length - columns)))
        block_codes, block_scales = quantize_rows(values.reshape(-1, length), DType.FLOAT8_E4M3FN)
        check_fp8_values(block_scales)
        codes[chunk] = block_codes.reshape(len(values), -1)[:, :columns]
        scales[chunk] = block_scales.reshape(len(values), -1)
    return QuantizedArrays(codes, scales)


def check_fp8_values(scales: Array) -> None:
    """Raise InvalidArgumentError if a scale is not finite, because a value of its row is not."""
    if not np.isfinite(scales).all():
        raise InvalidArgumentError("Values that are not finite cannot be stored as fp8.")


def dequantize_fp8(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """Return the values [N, K] of a weight: products in float32, rounded to a narrower `dtype`."""
    values = np.empty(weight.shape, dtype)
    block = weight.format.block
    for chunk in row_chunks(weight.shape):
        scales = weight.scales[chunk]
        scales = np.repeat(scales, block, axis=1)[:, : weight.shape[1]] if block else scales
        values[chunk] = weight.codes[chunk].astype(np.float32) * scales
    return values
