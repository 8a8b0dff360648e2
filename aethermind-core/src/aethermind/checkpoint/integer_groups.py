"""Integer codes with a scale, and perhaps a zero point, for each group of columns, and the weight formats that hold
them.

GPTQ, AWQ and compressed-tensors store such matrices. A value is scale · (code − zero point), with codes from 0; without
zero points the middle code, 2^(bits − 1), is zero. Codes of up to 4 bits are held in 4, more in 8. Scales are rounded
to float16 in weight formats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["INT8", "dense_groups", "group_format", "group_weight", "unpack_codes"]

Array = npt.NDArray[Any]

_found = parse_format("int8")
assert _found is not None, "the grammar has int8"
INT8: WeightFormat = _found
"""The format as which weights are requantised that no format holds exactly: 8 bits, 32 values share a scale."""


def unpack_codes(words: Array, bits: int, count: int) -> Array:
    """Unpack `count` codes of each row of words, uint8 [rows, count]; code i is in the bits from i · bits on.

    Words are of any size, little-endian, and hold at least so many codes.
    """
    stored = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stored[:, :count]
    if 8 % bits:  # such codes cross byte boundaries
        num_bits = stored.shape[1] * 8 // bits * bits
        of_code = np.unpackbits(stored, axis=1, count=num_bits, bitorder="little").reshape(len(stored), -1, bits)
        codes = np.zeros(of_code.shape[:2], np.uint8)
        for place in range(bits):
            codes |= of_code[:, :, place] << np.uint8(place)
        return codes[:, :count]
    per_byte = 8 // bits
    codes = np.empty((len(stored), per_byte * stored.shape[1]), np.uint8)
    for place in range(per_byte):
        codes[:, place::per_byte] = (stored >> (place * bits)) & ((1 << bits) - 1)
    return codes[:, :count]


def group_format(bits: int, group_size: int, has_zeros: bool) -> WeightFormat | None:
    """Return the format of codes in groups of so many columns, 0 for a whole row; None if no format has such groups."""
    suffix = f"g{group_size}" if group_size else "channel"
    return parse_format(f"int{4 if bits <= 4 else 8}{'_zp' if has_zeros else ''}_{suffix}")


def group_weight(
    format: WeightFormat, codes: Array, scales: Array, zeros: Array | None, middle: int
) -> QuantizedWeight:
    """Return codes, uint8 [N, K], with float16 scales and uint8 zero points [N, groups] in a format of `group_format`.

    `zeros` are None, or not read, if each of them is the `middle`.
    """
    if format.has_zero_point:
        return QuantizedWeight(format, codes, scales, zeros)
    return QuantizedWeight(format, (codes - np.uint8(middle)).view(np.int8), scales)


def dense_groups(
    codes: Array, scales: Array, zeros: Array | None, middle: int, groups: Array, dtype: npt.DTypeLike = np.float32
) -> Array:
    """Return the values of codes whose columns belong to the `groups` [K], in any order: computed in float32 and
    rounded to `dtype`.
    """
    found = np.empty(codes.shape, dtype)
    for chunk in row_chunks(codes.shape):
        values = codes[chunk].astype(np.float32)
        values -= np.float32(middle) if zeros is None else zeros[chunk].astype(np.float32)[:, groups]
        values *= scales[chunk].astype(np.float32)[:, groups]
        found[chunk] = values
    return found
