"""The definition of formats with super-blocks (K-quants), as `aethermind.ops.quantization` is of the other formats.

Every block gets the scale and offset that a format with float16 offsets would choose. The largest scale and the offset
farthest from zero of a super-block are 63 units each, rounded up to float16; scale and offset of every block are
rounded to integers in these units. From there the best of 15 pairs is searched, by the sum of squared errors, the first
of equals: scales up to one unit away and offsets up to two, each with the codes that suit it.

Offset units of a super-block have one sign: negative as soon as a block has a negative offset. A block with a positive
offset then has the offset 0, and the search starts from the scale with which it reaches its largest value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aethermind.ops.quantization import (
    Codes,
    affine_codes,
    check_values,
    encode_affine,
    inverses,
    row_chunks,
    sum_in_order,
    units_of_blocks,
)

if TYPE_CHECKING:
    from aethermind.ops.weight_format import WeightFormat

__all__ = ["encode_super_blocks"]

Array = NDArray[Any]

_MOST_UNITS = 63
_SCALE_STEPS, _OFFSET_STEPS = (0, -1, 1), (0, -1, 1, -2, 2)


def encode_super_blocks(format: WeightFormat, array: Array) -> Codes:
    """Quantise a floating-point array [N, K]; InvalidArgumentError as of `quantization.encode`."""
    rows, columns = array.shape
    codes = np.empty(array.shape, np.uint8)
    scales, offsets = np.empty((2, rows, format.num_blocks(columns)), np.uint8)
    units = np.empty((rows, format.num_super_blocks(columns), 2), np.float16)
    whole = columns // format.block
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        check_values(values, format)
        units[chunk], started = _started(format, values, encode_affine(format, values))
        for blocks, begin, end in (
            (slice(0, whole), 0, whole * format.block),
            (slice(whole, None), whole * format.block, columns),
        ):
            if begin == end:
                continue
            blocked = values[:, begin:end].reshape(len(values), -1, min(format.block, end - begin))
            per_block = units_of_blocks(format, units[chunk], started.shape[1])[:, blocks]
            found, scales[chunk, blocks], offsets[chunk, blocks] = _best(
                blocked, per_block, started[:, blocks], np.float32((1 << format.bits) - 1)
            )
            codes[chunk, begin:end] = found.reshape(len(values), -1)
    return Codes(codes, scales, None, offsets, units)


def _started(format: WeightFormat, values: Array, affine: Codes) -> tuple[Array, Array]:
    """Return the units [n, super-blocks, 2] of values [n, K], and the rounded scale and offset of blocks in units.

    The latter are float32 integers [n, blocks, 2].
    """
    assert affine.offsets is not None
    rows, blocks = affine.scales.shape
    columns = values.shape[1]
    together = format.super_block // format.block
    padded = np.zeros((2, rows, format.num_super_blocks(columns) * together), np.float32)
    padded[0, :, :blocks], padded[1, :, :blocks] = affine.scales, affine.offsets
    scales, offsets = padded.reshape(2, rows, -1, together)
    is_negative = offsets.min(-1) < 0
    reaches = np.zeros((rows, padded.shape[2]), np.float32)
    reaches[:, :blocks] = np.maximum.reduceat(values, np.arange(0, columns, format.block), axis=1)
    is_other = is_negative[..., None] & (offsets > 0)
    scales = np.where(is_other, reaches.reshape(scales.shape) / np.float32((1 << format.bits) - 1), scales)
    offsets = np.where(is_other, np.float32(0), offsets)
    of_scales = _units_of(scales.max(-1))
    of_offsets = _units_of(np.abs(offsets).max(-1))
    units = np.stack([of_scales, np.where(is_negative, -of_offsets, of_offsets)], axis=-1)
    counted = np.stack([scales, offsets], axis=-1) * inverses(units.astype(np.float32))[:, :, None]
    started = np.clip(np.rint(counted), 0, _MOST_UNITS).reshape(rows, -1, 2)[:, :blocks]
    return units, started


def _units_of(largest: Array) -> Array:
    """Return the float16 units of which 63 reach the largest."""
    units = (largest / np.float32(_MOST_UNITS)).astype(np.float16)
    is_short = np.float32(_MOST_UNITS) * units.astype(np.float32) < largest
    units[is_short] = np.nextafter(units[is_short], np.float16(np.inf))
    return units


def _best(x: Array, units: Array, started: Array, most: np.float32) -> tuple[Array, Array, Array]:
    """Return codes of blocks [n, blocks, values], and scales and offsets in units [n, blocks, 2]."""
    codes = np.zeros(x.shape, np.float32)
    chosen = started.copy()
    least = np.full(x.shape[:-1], np.inf)
    for scale_step in _SCALE_STEPS:
        for offset_step in _OFFSET_STEPS:
            tried = np.clip(started + np.array([scale_step, offset_step], np.float32), 0, _MOST_UNITS)
            sides = tried * units
            scales, offsets = sides[..., 0], sides[..., 1]
            found = affine_codes(x, scales, offsets, most)
            errors = (x - (scales[..., None] * found + offsets[..., None])).astype(np.float64)
            total = sum_in_order(errors * errors)
            is_better = total < least
            least[is_better] = total[is_better]
            codes[is_better] = found[is_better]
            chosen[is_better] = tried[is_better]
    return codes, chosen[..., 0], chosen[..., 1]
