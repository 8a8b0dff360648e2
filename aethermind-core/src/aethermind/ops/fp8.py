"""The definition of the weight format fp8, in NumPy: elements E4M3 with a float32 scale for each row, or for each block
of a row.

Source: OCP 8-bit Floating Point Specification (OFP8), version 1.0. Codes are float8_e4m3fn: finite up to 448, without
infinities. The scale of a row is its largest magnitude over 448, as in a quantised KV cache (`quantize_rows`) and in
the channel-wise FP8 of compressed-tensors. Blocks are those of checkpoints such as DeepSeek V3's, whose scales are
repeated for each row.

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


def encode_fp8(array: Array, block: int = 0) -> Codes:
    """Quantise a floating-point array [N, K] in blocks of a row, 0 for whole rows; InvalidArgumentError for values that
    are not finite.
    """
    rows, columns = array.shape
    length = block or columns
    num_blocks = -(-columns // length) if columns else 0
    codes = np.zeros((rows, columns), DType.FLOAT8_E4M3FN.numpy)
    scales = np.zeros((rows, num_blocks), np.float32)
    for chunk in row_chunks(array.shape):
        values = np.pad(array[chunk], ((0, 0), (0, num_blocks * length - columns)))
        found, of_blocks = quantize_rows(values.reshape(-1, length), DType.FLOAT8_E4M3FN)
        check_fp8_values(of_blocks)
        codes[chunk] = found.reshape(len(values), -1)[:, :columns]
        scales[chunk] = of_blocks.reshape(len(values), -1)
    return Codes(codes, scales)


def check_fp8_values(scales: Array) -> None:
    """Raise InvalidArgumentError where a scale is that of a row with values that are not finite."""
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
