"""The definition of scales and offsets in two levels, as `aethermind.ops.quantization` is of the other formats.

Every block gets the line (scale and offset) that a format of float16 offsets would choose. The largest scale and the
offset farthest from zero of a super-block make 63 units, float16 that are rounded up; both of every block are brought
to whole units. From there the best of 15 pairs is searched: scales up to one unit away and offsets up to two, each
with the codes that suit it, by the sum of squared errors, the first of equals.

Units of offsets have one sign: negative as soon as a block of the super-block wants that. A block that wants a positive
offset then has none, and starts from a scale by which it reaches its largest value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aethermind.ops.quantization import (
    check_values,
    codes_on,
    inverses,
    portions,
    sum_in_order,
    units_of_blocks,
    wide_sides,
    with_offsets,
)
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, one_level_format

__all__ = ["in_one_level", "quantize_in_two_levels"]

Array = NDArray[Any]

_LARGEST = np.float32(np.finfo(np.float16).max)
_MOST_UNITS = 63
_SCALE_STEPS, _OFFSET_STEPS = (0, -1, 1), (0, -1, 1, -2, 2)


def in_one_level(weight: QuantizedWeight) -> QuantizedWeight:
    """The same codes with scales and offsets in float16: products rounded by a relative 2⁻¹² at most."""
    scales, offsets = wide_sides(weight)
    assert offsets is not None
    scales, offsets = np.clip((scales, offsets), -_LARGEST, _LARGEST).astype(np.float16)
    return QuantizedWeight(one_level_format(weight.format), weight.codes, scales, None, offsets)


def quantize_in_two_levels(format: WeightFormat, array: Array) -> QuantizedWeight:
    """Convert a floating-point array [N, K]; InvalidArgumentError as by `quantize`."""
    rows, columns = array.shape
    codes = np.empty(array.shape, np.uint8)
    scales, offsets = np.empty((2, rows, format.num_blocks(columns)), np.uint8)
    units = np.empty((rows, format.num_super_blocks(columns), 2), np.float16)
    of_lines = one_level_format(format)
    whole = columns // format.block
    for part in portions(array.shape):
        values = array[part].astype(np.float32)
        check_values(values, format)
        lines = with_offsets(of_lines, values)
        assert lines.offsets is not None
        units[part], started = _started(format, values, lines)
        for blocks, begin, end in (
            (slice(0, whole), 0, whole * format.block),
            (slice(whole, None), whole * format.block, columns),
        ):
            if begin == end:
                continue
            blocked = values[:, begin:end].reshape(len(values), -1, min(format.block, end - begin))
            per_block = units_of_blocks(format, units[part], started.shape[1])[:, blocks]
            found, scales[part, blocks], offsets[part, blocks] = _best(
                blocked, per_block, started[:, blocks], np.float32((1 << format.bits) - 1)
            )
            codes[part, begin:end] = found.reshape(len(values), -1)
    return QuantizedWeight(format, codes, scales, None, offsets, units)


def _started(format: WeightFormat, values: Array, lines: QuantizedWeight) -> tuple[Array, Array]:
    """The units [n, super-blocks, 2] of values [n, K], and what each block has of them [n, blocks, 2], rounded."""
    assert lines.offsets is not None
    rows, blocks = lines.scales.shape
    columns = values.shape[1]
    together = format.super_block // format.block
    padded = np.zeros((2, rows, format.num_super_blocks(columns) * together), np.float32)
    padded[0, :, :blocks], padded[1, :, :blocks] = lines.scales, lines.offsets
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
    """The float16 numbers of which 63 reach the largest."""
    units = (largest / np.float32(_MOST_UNITS)).astype(np.float16)
    is_short = np.float32(_MOST_UNITS) * units.astype(np.float32) < largest
    units[is_short] = np.nextafter(units[is_short], np.float16(np.inf))
    return units


def _best(x: Array, units: Array, started: Array, most: np.float32) -> tuple[Array, Array, Array]:
    """Codes, scales and offsets of blocks [n, blocks, values], the latter in units [n, blocks, 2]."""
    codes = np.zeros(x.shape, np.float32)
    chosen = started.copy()
    least = np.full(x.shape[:-1], np.inf)
    for scale_step in _SCALE_STEPS:
        for offset_step in _OFFSET_STEPS:
            tried = np.clip(started + np.array([scale_step, offset_step], np.float32), 0, _MOST_UNITS)
            lines = tried * units
            scales, offsets = lines[..., 0], lines[..., 1]
            found = codes_on(x, scales, offsets, most)
            errors = (x - (scales[..., None] * found + offsets[..., None])).astype(np.float64)
            total = sum_in_order(errors * errors)
            is_better = total < least
            least[is_better] = total[is_better]
            codes[is_better] = found[is_better]
            chosen[is_better] = tried[is_better]
    return codes, chosen[..., 0], chosen[..., 1]
