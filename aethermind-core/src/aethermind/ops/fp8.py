"""The definition of the weight format fp8, in NumPy: elements E4M3 with a float32 scale for each row.

Source: OCP 8-bit Floating Point Specification (OFP8), version 1.0. Codes are float8_e4m3fn: finite up to 448, without
infinities. The scale of a row is its largest magnitude over 448, as in a quantised KV cache (`quantize_rows`) and in
the channel-wise FP8 of compressed-tensors.

Kernels may quantise the inputs of a product in the same way, one scale for each token (W8A8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.errors import InvalidArgumentError
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._quantized_rows import quantize_rows
from aethermind.ops.quantization import Codes, row_chunks

if TYPE_CHECKING:
    from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["check_fp8_values", "dequantize_fp8", "encode_fp8"]

Array = NDArray[Any]


def encode_fp8(array: Array) -> Codes:
    """Quantise a floating-point array [N, K]; InvalidArgumentError for values that are not finite."""
    rows, columns = array.shape
    codes = np.zeros((rows, columns), DType.FLOAT8_E4M3FN.numpy)
    scales = np.zeros((rows, min(1, columns)), np.float32)
    for chunk in row_chunks(array.shape):
        codes[chunk], found = quantize_rows(array[chunk], DType.FLOAT8_E4M3FN)
        check_fp8_values(found)
        scales[chunk] = found[:, None]
    return Codes(codes, scales)


def check_fp8_values(scales: Array) -> None:
    """Raise InvalidArgumentError where a scale is that of a row with values that are not finite."""
    if not np.isfinite(scales).all():
        raise InvalidArgumentError("Values that are not finite cannot be stored as fp8.")


def dequantize_fp8(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """Return the values [N, K] of a weight: products in float32, rounded to a narrower `dtype`."""
    values = np.empty(weight.shape, dtype)
    for chunk in row_chunks(weight.shape):
        values[chunk] = weight.codes[chunk].astype(np.float32) * weight.scales[chunk]
    return values
