"""The definition of the core's weight formats, in NumPy: which codes, scales and zero points stand for an array.

Kernels pack the same numbers, bit for bit, so every operation and its rounding counts: values are float32; scales are
rounded to float16 and from then on used as rounded; codes are `rint(x · (1/scale))`, half to even, the reciprocal
rounded to float32; sums run in float64 from the first value of a block to its last.

Of several candidate scales the one with the least sum of squared errors is taken, the first of equals. Candidates are
a block's extent divided by numbers of steps: more steps than codes clip the largest values and store the others finer.
Where there is an offset, scale and offset are also the line of least squares through the codes of the candidate before.

Symmetric codes of 4 bits are the coarsest for their range. Their errors count by the block's root mean square plus the
value's magnitude, the weights of llama.cpp's K-quants, and their scale is also that of least squares. On trained models
(SmolLM2-135M, all-MiniLM-L6-v2) this diverges less than equal weights do, and than Q4_0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.errors import InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = [
    "check_magnitude",
    "check_values",
    "codes_on",
    "dequantize",
    "inverses",
    "portions",
    "quantize",
    "rounded",
    "sum_in_order",
    "units_of_blocks",
    "wide_sides",
    "with_offsets",
]

Array = NDArray[Any]

_VALUES_AT_ONCE = 1 << 18
_LARGEST = float(np.finfo(np.float16).max)
_STEPS = {4: (8.0, 7.25, 8.75, 10.0)}
"""By bits, of formats without zero points: into how many steps the block's largest magnitude is divided; each is
followed by scales fitted to the codes that it leads to."""
_STEPS_WITH_ZERO = {
    8: (255.0, 254.0),
    4: (15.0, 14.0, 15.75, 16.5, 17.5, 18.75),
    2: (3.0, 2.0, 3.25, 3.5, 4.0, 4.5, 5.0, 6.0),
}
"""By bits, of formats with zero points: into how many steps the block's range is divided."""
_STEPS_WITH_OFFSET = {8: (255.0,), 4: (15.0, 15.75, 16.5, 17.5)}
"""By bits, of formats with offsets: the same; each is followed by lines fitted through the codes that it leads to."""
_NUM_FITS = 2


def quantize(format: WeightFormat, array: Array) -> QuantizedWeight:
    """Convert a floating-point array [N, K], some rows at a time.

    InvalidArgumentError for values that are not finite, or beyond float16's largest, which scales could not reach.
    """
    rows, columns = array.shape
    blocks = (rows, format.num_blocks(columns))
    if format.super_block:
        from aethermind.ops.two_levels import quantize_in_two_levels

        return quantize_in_two_levels(format, array)
    if format.has_offset:
        return with_offsets(format, array)
    codes = np.empty(array.shape, np.uint8 if format.has_zero_point else np.int8)
    scales = np.empty(blocks, np.float16)
    zeros = np.empty(blocks, np.uint8) if format.has_zero_point else None
    for part in portions(array.shape):
        values = array[part].astype(np.float32)
        check_values(values, format)
        blocked = _in_blocks(values, format)
        if zeros is not None:
            found, scales[part], zeros[part] = _with_zero_points(blocked, format.bits)
        elif format.bits == 1:
            found, scales[part] = _signs(blocked, _lengths(columns, format))
        elif format.bits == 8:
            found, scales[part] = _fine(blocked)
        else:
            found, scales[part] = _coarse(blocked, _lengths(columns, format), format.bits)
        codes[part] = found.reshape(len(values), -1)[:, :columns]
    return QuantizedWeight(format, codes, scales, zeros)


def dequantize(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """The values [N, K] that a weight stands for: exact in float32, rounded to a narrower `dtype`."""
    values = np.empty(weight.shape, dtype)
    for part in portions(weight.shape):
        portion = weight.rows(part.start, part.stop)
        blocked = _in_blocks(portion.codes.astype(np.float32), weight.format)
        if portion.zeros is not None:
            blocked -= portion.zeros[..., None].astype(np.float32)
        scales, offsets = wide_sides(portion)
        blocked *= scales[..., None]
        if offsets is not None:
            blocked += offsets[..., None]
        values[part] = blocked.reshape(len(portion.codes), -1)[:, : weight.shape[1]]
    return values


def wide_sides(weight: QuantizedWeight) -> tuple[Array, Array | None]:
    """Scales and offsets in float32; those in two levels are products of 17 bits, and so exact as well."""
    sides = [None if side is None else side.astype(np.float32) for side in (weight.scales, weight.offsets)]
    if weight.units is not None:
        units = units_of_blocks(weight.format, weight.units, weight.scales.shape[1])
        sides = [None if side is None else side * units[..., i] for i, side in enumerate(sides)]
    scales, offsets = sides
    assert scales is not None
    return scales, offsets


def units_of_blocks(format: WeightFormat, units: Array, num_blocks: int) -> Array:
    """The units [N, super-blocks, 2] of each block, in float32 [N, blocks, 2]."""
    each: Array = np.repeat(units.astype(np.float32), format.super_block // format.block, axis=1)[:, :num_blocks]
    return each


def rounded(format: WeightFormat, array: Array) -> Array:
    """The float32 values that an array [N, K] has after a way through a format, without its codes held as a whole."""
    values = np.empty(array.shape, np.float32)
    for part in portions(array.shape):
        values[part] = format.dequantize(format.quantize(array[part]))
    return values


def portions(shape: tuple[int, ...]) -> Iterator[slice]:
    """Rows that are converted together; none where rows are empty."""
    rows, columns = shape
    count = max(1, _VALUES_AT_ONCE // max(columns, 1))
    return (slice(begin, min(begin + count, rows)) for begin in range(0, rows if columns else 0, count))


def _in_blocks(values: Array, format: WeightFormat) -> Array:
    """[n, K] as [n, blocks, block], zeros behind the end of a row."""
    rows, columns = values.shape
    blocks = format.num_blocks(columns)
    length = format.block or columns
    padded = blocks * length
    if padded != columns:
        values = np.pad(values, ((0, 0), (0, padded - columns)))
    return values.reshape(rows, blocks, length)


def _lengths(columns: int, format: WeightFormat) -> Array:
    """Values in each block of a row."""
    length = format.block or columns
    return np.minimum(length, columns - length * np.arange(format.num_blocks(columns)))


def check_values(values: Array, format: WeightFormat) -> None:
    """InvalidArgumentError where a format cannot store one of the values."""
    check_magnitude(np.abs(values).max(), format)


def check_magnitude(largest: float, format: WeightFormat) -> None:
    """InvalidArgumentError where a format cannot store a value of this magnitude."""
    if not np.isfinite(largest):
        raise InvalidArgumentError(f"Values that are not finite cannot be stored as {format.name}.")
    if largest > _LARGEST:
        raise InvalidArgumentError(
            f"A value of magnitude {largest:g} cannot be stored as {format.name}: its scales are float16, up to "
            f"{_LARGEST:g}."
        )


def _fine(x: Array) -> tuple[Array, Array]:
    """8 bits: the largest magnitude in 127 steps, at an error of half a step.

    A tiny scale, of few digits, is rounded up where half a step more than 127 would not reach the largest magnitude.
    """
    largest = np.abs(x).max(-1)
    scales = (largest / np.float32(127)).astype(np.float16)
    is_short = np.float32(127.5) * scales.astype(np.float32) < largest
    scales[is_short] = np.nextafter(scales[is_short], np.float16(np.inf))
    return np.clip(_steps_of(x, scales), -127, 127), scales


def _coarse(x: Array, lengths: Array, bits: int) -> tuple[Array, Array]:
    """Codes from −2^(bits−1): the largest magnitude, whichever its sign, gets a negative code."""
    most = 1 << (bits - 1)
    position = np.abs(x).argmax(-1)[..., None]
    peak = np.take_along_axis(x, position, -1)[..., 0]
    wide = x.astype(np.float64)
    typical = np.sqrt(sum_in_order(wide * wide) / lengths).astype(np.float32)
    weights = (typical[..., None] + np.abs(x)).astype(np.float64)
    choice = _Choice(x, weights)
    for steps in _STEPS[bits]:
        scales = (peak / np.float32(-steps)).astype(np.float16)
        for turn in range(_NUM_FITS + 1):
            codes = np.clip(_steps_of(x, scales), -most, most - 1)
            choice.offer(codes, scales, np.float32(0))
            if turn < _NUM_FITS:
                scales = _fitted_scale(wide, codes.astype(np.float64), weights)
    return choice.codes, choice.scales


def _fitted_scale(x: Array, codes: Array, weights: Array) -> Array:
    """The scale of least weighted squares for given codes; 0 where all codes are. All are float64."""
    weighted = weights * codes
    squares = sum_in_order(weighted * codes)
    slope = np.divide(sum_in_order(weighted * x), squares, out=np.zeros_like(squares), where=squares != 0)
    return slope.astype(np.float32).astype(np.float16)


def _with_zero_points(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """Codes from 0; the zero point is among them, so that zero stays zero."""
    most = np.float32((1 << bits) - 1)
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    extent = high - low
    choice = _Choice(x)
    for steps in _STEPS_WITH_ZERO[bits]:
        scales = (extent / np.float32(steps)).astype(np.float16)
        share = -low * min(np.float32(steps), most)
        zeros = np.rint(np.divide(share, extent, out=np.zeros_like(share), where=scales != 0))
        codes = np.clip(_steps_of(x, scales) + zeros[..., None], 0, most)
        choice.offer(codes, scales, zeros)
    return choice.codes, choice.scales, choice.zeros


def with_offsets(format: WeightFormat, array: Array) -> QuantizedWeight:
    """Convert to a format with float16 offsets; InvalidArgumentError as by `quantize`.

    Codes are from 0. A shorter last block is one by itself, since padding would bear on its offset.
    """
    rows, columns = array.shape
    codes = np.empty(array.shape, np.uint8)
    scales, offsets = np.empty((2, rows, format.num_blocks(columns)), np.float16)
    length = format.block or max(columns, 1)
    whole = columns // length
    for part in portions(array.shape):
        values = array[part].astype(np.float32)
        check_values(values, format)
        for first, last, begin, end in ((0, whole, 0, whole * length), (whole, whole + 1, whole * length, columns)):
            if begin == end:
                continue
            blocked = values[:, begin:end].reshape(len(values), last - first, -1)
            found, scales[part, first:last], offsets[part, first:last] = _lines(blocked, format.bits)
            codes[part, begin:end] = found.reshape(len(values), -1)
    return QuantizedWeight(format, codes, scales, None, offsets)


def _lines(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """Codes, scales and offsets of blocks."""
    most = np.float32((1 << bits) - 1)
    low, high = x.min(-1), x.max(-1)
    extent, middle = high - low, np.float32(0.5) * low + np.float32(0.5) * high
    choice = _Choice(x)
    for steps in _STEPS_WITH_OFFSET[bits]:
        scales = _half(extent / np.float32(steps))
        offsets = _half(middle - np.float32(0.5) * most * scales.astype(np.float32))
        codes = codes_on(x, scales, offsets, most)
        choice.offer(codes, scales, np.float32(0), offsets)
        for _ in range(_NUM_FITS):
            scales, offsets = _fitted(x, codes)
            codes = codes_on(x, scales, offsets, most)
            choice.offer(codes, scales, np.float32(0), offsets)
    return choice.codes, choice.scales, choice.offsets


def codes_on(x: Array, scales: Array, offsets: Array, most: np.float32) -> Array:
    """Codes from 0 to `most` of blocks [..., values] on lines of a scale and an offset each."""
    shifted = x - offsets.astype(np.float32)[..., None]
    codes: Array = np.clip(_steps_of(shifted, scales), 0, most)
    return codes


def _fitted(x: Array, codes: Array) -> tuple[Array, Array]:
    """Scale and offset of least squares for given codes; a scale of 0 where all codes are the same."""
    count = float(x.shape[-1])
    wide = codes.astype(np.float64)
    sum_c, sum_cc, sum_x, sum_xc = (
        sum_in_order(wide),
        sum_in_order(wide * wide),
        sum_in_order(x),
        sum_in_order(x * wide),
    )
    determinant = count * sum_cc - sum_c * sum_c
    slope = np.divide(
        count * sum_xc - sum_c * sum_x, determinant, out=np.zeros_like(determinant), where=determinant != 0
    )
    return _half(slope.astype(np.float32)), _half(((sum_x - slope * sum_c) / count).astype(np.float32))


def _half(values: Array) -> Array:
    """Rounded to float16, what is beyond its largest to that, and a negative zero to a positive one."""
    return np.clip(values + np.float32(0), np.float32(-_LARGEST), np.float32(_LARGEST)).astype(np.float16)


def _signs(x: Array, lengths: Array) -> tuple[Array, Array]:
    """1 bit: the sign, of the block's mean magnitude. Zero counts as positive."""
    scales = (sum_in_order(np.abs(x)) / lengths).astype(np.float32).astype(np.float16)
    return np.where((x < 0) & (scales != 0)[..., None], -1, 1), scales


def _steps_of(x: Array, scales: Array) -> Array:
    """x in steps of the scales, rounded; 0 where a scale is 0."""
    wide = scales.astype(np.float32)
    inverse = inverses(wide)
    steps: Array = np.rint(x * inverse[..., None])
    return steps


def inverses(values: Array) -> Array:
    """1 / value in float32, and 0 of 0."""
    inverse: Array = np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)
    return inverse


def sum_in_order(values: Array) -> Array:
    """Sums of blocks, in order, in float64."""
    total: Array = np.add.accumulate(values, axis=-1, dtype=np.float64)[..., -1]
    return total


class _Choice:
    """The best of the candidates offered so far, block by block. Mutable."""

    def __init__(self, x: Array, weights: Array | None = None) -> None:
        self.codes = np.zeros(x.shape, np.float32)
        self.scales = np.zeros(x.shape[:-1], np.float16)
        self.zeros = np.zeros(x.shape[:-1], np.float32)
        self.offsets = np.zeros(x.shape[:-1], np.float16)
        self._x, self._weights = x, weights
        self._errors = np.full(x.shape[:-1], np.inf)

    def offer(self, codes: Array, scales: Array, zeros: Array | np.float32, offsets: Array | None = None) -> None:
        """Take a candidate where its (weighted) sum of squared errors is less than that of those before it."""
        values = scales.astype(np.float32)[..., None] * (codes - np.asarray(zeros)[..., None])
        if offsets is not None:
            values += offsets.astype(np.float32)[..., None]
        errors = (self._x - values).astype(np.float64)
        squares = errors * errors
        total = sum_in_order(squares if self._weights is None else self._weights * squares)
        is_better = total < self._errors
        self._errors[is_better] = total[is_better]
        self.codes[is_better] = codes[is_better]
        self.scales[is_better] = scales[is_better]
        self.zeros[is_better] = np.broadcast_to(zeros, scales.shape)[is_better]
        if offsets is not None:
            self.offsets[is_better] = offsets[is_better]
