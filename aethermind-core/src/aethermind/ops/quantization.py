"""The definition of the core's weight formats, in NumPy: which codes, scales and zero points represent an array.

Kernels pack the same numbers, bit for bit, so every operation and its rounding counts: values are float32; scales are
rounded to float16 and used as rounded from then on; codes are `rint(x · (1/scale))`, half to even, the reciprocal
rounded to float32; sums run in float64 from the first value of a block to its last.

Of several candidate scales the one with the least sum of squared errors is taken, the first of equals. Candidates
divide a block's range by several numbers of quantisation steps: more steps than codes clip the largest values and
represent the others more finely. In formats with offsets, each candidate is followed by affine maps (scale and offset)
fitted by least squares to the codes of the candidate before.

In symmetric formats of 4 to 6 bits, squared errors are weighted by the block's root mean square plus the value's
magnitude, the weights of llama.cpp's K-quants, and candidates are followed by scales fitted by least squares as well.

With an importance, one number for each column (llama.cpp's importance matrix), squared errors are multiplied by it as
well. Weights that are quantised while they are loaded have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = [
    "QuantizedArrays",
    "affine_codes",
    "check_magnitude",
    "check_values",
    "dequantize",
    "encode",
    "encode_affine",
    "fake_quantize",
    "float16_scales",
    "float32_scales",
    "inverses",
    "row_chunks",
    "scales_of_super_blocks",
    "strided_blocks",
    "sum_in_order",
]

Array = NDArray[Any]

_VALUES_PER_CHUNK = 1 << 16
_MAX_FLOAT16 = float(np.finfo(np.float16).max)
_CANDIDATE_RANGES = {
    4: (8.0, 7.25, 8.75, 10.0),
    5: (16.0, 15.25, 16.75, 18.0),
    6: (32.0, 31.25, 32.75),
}
"""By bits, for symmetric formats: numbers of steps into which the block's largest magnitude is divided.

Each candidate is followed by scales that are fitted to its codes.
"""
_CANDIDATE_RANGES_WITH_ZERO = {
    8: (255.0, 254.0),
    4: (15.0, 14.0, 15.75, 16.5, 17.5, 18.75),
    2: (3.0, 2.0, 3.25, 3.5, 4.0, 4.5, 5.0, 6.0),
}
"""By bits, for formats with zero points: numbers of steps into which the block's range is divided."""
_CANDIDATE_RANGES_WITH_OFFSET = {8: (255.0,), 5: (31.0, 32.0, 33.5), 4: (15.0, 15.75, 16.5, 17.5)}
"""By bits, for formats with offsets: the same. Each candidate is followed by affine maps fitted to its codes."""
_NUM_FITS = 2


class QuantizedArrays(NamedTuple):
    """The arrays of a `QuantizedWeight`, in the order of its fields after `format`."""

    codes: Array
    scales: Array
    zeros: Array | None = None
    offsets: Array | None = None
    super_block_scales: Array | None = None


def encode(format: WeightFormat, array: Array, importance: Array | None = None) -> QuantizedArrays:
    """Quantise a floating-point array [N, K] to a format without super-blocks, in chunks of rows.

    Squared errors of a column are multiplied by its `importance` [K], which is not negative. Formats of 8 bits and of 1
    ignore it, since their scales are computed without a search. InvalidArgumentError for values that are not finite, or
    too large for float16 scales.
    """
    rows, columns = array.shape
    blocks = (rows, format.num_blocks(columns))
    if format.has_offset:
        return encode_affine(format, array, importance)
    weights = None if importance is None else _in_blocks(importance[None].astype(np.float64), format)
    codes = np.empty(array.shape, np.uint8 if format.has_zero_point else np.int8)
    scales = np.empty(blocks, np.float16)
    zeros = np.empty(blocks, np.uint8) if format.has_zero_point else None
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        check_values(values, format)
        blocked = _in_blocks(values, format)
        if zeros is not None:
            block_codes, scales[chunk], zeros[chunk] = _with_zero_points(blocked, format.bits, weights)
        elif format.bits == 1:
            block_codes, scales[chunk] = _signs(blocked, _lengths(columns, format))
        elif format.bits == 8:
            block_codes, scales[chunk] = _int8_symmetric(blocked)
        else:
            block_codes, scales[chunk] = _low_bit_symmetric(blocked, _lengths(columns, format), format.bits, weights)
        codes[chunk] = block_codes.reshape(len(values), -1)[:, :columns]
    return QuantizedArrays(codes, scales, zeros)


def dequantize(weight: QuantizedWeight, dtype: DTypeLike = np.float32) -> Array:
    """Return the values [N, K] of a weight: exact in float32, rounded to a narrower `dtype`."""
    values = np.empty(weight.shape, dtype)
    for chunk in row_chunks(weight.shape):
        rows = weight.rows(chunk.start, chunk.stop)
        blocked = _in_blocks(rows.codes.astype(np.float32), weight.format)
        if rows.zeros is not None:
            blocked -= rows.zeros[..., None].astype(np.float32)
        scales, offsets = float32_scales(rows)
        blocked *= scales[..., None]
        if offsets is not None:
            blocked += offsets[..., None]
        values[chunk] = blocked.reshape(len(rows.codes), -1)[:, : weight.shape[1]]
    return values


def float32_scales(weight: QuantizedWeight) -> tuple[Array, Array | None]:
    """Return scales and offsets in float32, exactly: with super-blocks they are products of at most 17 bits."""
    scales: Array = weight.scales.astype(np.float32)
    offsets: Array | None = None if weight.offsets is None else weight.offsets.astype(np.float32)
    if weight.super_block_scales is not None:
        factors = scales_of_super_blocks(weight.format, weight.super_block_scales, scales.shape[1])
        scales = scales * factors[..., 0]
        offsets = None if offsets is None else offsets * factors[..., 1]
    return scales, offsets


def float16_scales(weight: QuantizedWeight) -> tuple[Array, None, Array]:
    """Return scales, zero points (None) and offsets of a weight with super-blocks, rounded to float16."""
    scales, offsets = float32_scales(weight)
    assert offsets is not None
    scales, offsets = np.clip((scales, offsets), np.float32(-_MAX_FLOAT16), np.float32(_MAX_FLOAT16)).astype(np.float16)
    return scales, None, offsets


def scales_of_super_blocks(format: WeightFormat, super_block_scales: Array, num_blocks: int) -> Array:
    """Repeat the scales of super-blocks [N, super-blocks, 2] for each of their blocks: float32 [N, blocks, 2]."""
    blocks_per_super_block = format.super_block_size // format.block
    repeated: Array = np.repeat(super_block_scales.astype(np.float32), blocks_per_super_block, axis=1)
    return repeated[:, :num_blocks]


def fake_quantize(format: WeightFormat, array: Array) -> Array:
    """Return an array [N, K] quantised and dequantised, as float32; computed in chunks of rows, to save memory."""
    values = np.empty(array.shape, np.float32)
    for chunk in row_chunks(array.shape):
        values[chunk] = format.dequantize(format.quantize(array[chunk]))
    return values


def row_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Return slices of rows that are converted together, to bound the memory; none if rows are empty."""
    rows, columns = shape
    count = max(1, _VALUES_PER_CHUNK // max(columns, 1))
    return (slice(begin, min(begin + count, rows)) for begin in range(0, rows if columns else 0, count))


def _in_blocks(values: Array, format: WeightFormat) -> Array:
    """Return [n, K] as [n, blocks, block], padded by zeros at the end of a row."""
    rows, columns = values.shape
    blocks = format.num_blocks(columns)
    length = format.block or columns
    padded = blocks * length
    if padded != columns:
        values = np.pad(values, ((0, 0), (0, padded - columns)))
    return strided_blocks(values.reshape(rows, blocks, length))


def strided_blocks(blocked: Array) -> Array:
    """Return a copy of blocks [..., values] in which the last dim is the outermost one in memory.

    Operations then run over many blocks at once, and a sum over the values of blocks adds whole vectors.
    """
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(blocked, -1, 0)), 0, -1)


def _lengths(columns: int, format: WeightFormat) -> Array:
    """Return the number of values in each block of a row."""
    length = format.block or columns
    return np.minimum(length, columns - length * np.arange(format.num_blocks(columns)))


def check_values(values: Array, format: WeightFormat) -> None:
    """Raise InvalidArgumentError if a format cannot represent one of the values."""
    check_magnitude(np.abs(values).max(), format)


def check_magnitude(largest: float, format: WeightFormat) -> None:
    """Raise InvalidArgumentError if a format cannot represent a value of this magnitude."""
    if not np.isfinite(largest):
        raise InvalidArgumentError(f"Values that are not finite cannot be stored as {format.name}.")
    if largest > _MAX_FLOAT16 and format.scale_dtype != "float32":
        raise InvalidArgumentError(
            f"A value of magnitude {largest:g} cannot be stored as {format.name}: its scales are float16, up to "
            f"{_MAX_FLOAT16:g}."
        )


def _int8_symmetric(x: Array) -> tuple[Array, Array]:
    """Quantise to 8 bits: the largest magnitude is 127 scales, and errors are at most half a scale.

    A denormal scale, which has few bits, is rounded up if 127.5 scales would be less than the largest magnitude.
    """
    largest = np.abs(x).max(-1)
    scales = (largest / np.float32(127)).astype(np.float16)
    is_short = np.float32(127.5) * scales.astype(np.float32) < largest
    scales[is_short] = np.nextafter(scales[is_short], np.float16(np.inf))
    return np.clip(_rounded_codes(x, scales), -127, 127), scales


def _low_bit_symmetric(x: Array, lengths: Array, bits: int, importance: Array | None = None) -> tuple[Array, Array]:
    """Quantise to 4, 5 or 6 bits, codes −2^(bits−1) to 2^(bits−1) − 1.

    The value of largest magnitude has a negative code, so the scale has the opposite sign of that value.
    """
    half = 1 << (bits - 1)
    position = np.abs(x).argmax(-1)[..., None]
    peak = np.take_along_axis(x, position, -1)[..., 0]
    x_float64 = x.astype(np.float64)
    rms = np.sqrt(sum_in_order(x_float64 * x_float64) / lengths).astype(np.float32)
    weights = (rms[..., None] + np.abs(x)).astype(np.float64)
    if importance is not None:
        weights *= importance
    best = _BestCandidate(x, weights)
    for steps in _CANDIDATE_RANGES[bits]:
        scales = (peak / np.float32(-steps)).astype(np.float16)
        for fit in range(_NUM_FITS + 1):
            codes = np.clip(_rounded_codes(x, scales), -half, half - 1)
            best.update(codes, scales, np.float32(0))
            if fit < _NUM_FITS:
                scales = _fitted_scale(x_float64, codes.astype(np.float64), weights)
    return best.codes, best.scales


def _fitted_scale(x: Array, codes: Array, weights: Array) -> Array:
    """Return the scale of least weighted squared error for given codes; 0 where all codes are 0. All are float64."""
    weighted = weights * codes
    squares = sum_in_order(weighted * codes)
    slope = np.divide(sum_in_order(weighted * x), squares, out=np.zeros_like(squares), where=squares != 0)
    return slope.astype(np.float32).astype(np.float16)


def _with_zero_points(x: Array, bits: int, importance: Array | None = None) -> tuple[Array, Array, Array]:
    """Quantise to codes from 0; the zero point is a code, so that zero is exact."""
    max_code = np.float32((1 << bits) - 1)
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    span = high - low
    best = _BestCandidate(x, importance)
    for steps in _CANDIDATE_RANGES_WITH_ZERO[bits]:
        scales = (span / np.float32(steps)).astype(np.float16)
        below_zero = -low * min(np.float32(steps), max_code)
        zeros = np.rint(np.divide(below_zero, span, out=np.zeros_like(below_zero), where=scales != 0))
        codes = np.clip(_rounded_codes(x, scales) + zeros[..., None], 0, max_code)
        best.update(codes, scales, zeros)
    return best.codes, best.scales, best.zeros


def encode_affine(format: WeightFormat, array: Array, importance: Array | None = None) -> QuantizedArrays:
    """Quantise a floating-point array [N, K] to codes from 0 with a float16 scale and offset for each block.

    A shorter last block is quantised without padding, which would affect its offset. Errors are those of `encode`.
    """
    rows, columns = array.shape
    codes = np.empty(array.shape, np.uint8)
    scales, offsets = np.empty((2, rows, format.num_blocks(columns)), np.float16)
    length = format.block or max(columns, 1)
    num_full = columns // length
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        check_values(values, format)
        split = num_full * length
        for first, last, begin, end in ((0, num_full, 0, split), (num_full, num_full + 1, split, columns)):
            if begin == end:
                continue
            blocked = strided_blocks(values[:, begin:end].reshape(len(values), last - first, -1))
            weights = None if importance is None else importance[begin:end].reshape(last - first, -1)
            block_codes, scales[chunk, first:last], offsets[chunk, first:last] = _affine(blocked, format.bits, weights)
            codes[chunk, begin:end] = block_codes.reshape(len(values), -1)
    return QuantizedArrays(codes, scales, None, offsets)


def _affine(x: Array, bits: int, importance: Array | None = None) -> tuple[Array, Array, Array]:
    """Quantise blocks [..., values] to codes from 0 with a scale and an offset for each block; return all three."""
    max_code = np.float32((1 << bits) - 1)
    low, high = x.min(-1), x.max(-1)
    span, middle = high - low, np.float32(0.5) * low + np.float32(0.5) * high
    best = _BestCandidate(x, importance)
    for steps in _CANDIDATE_RANGES_WITH_OFFSET[bits]:
        scales = _to_float16(span / np.float32(steps))
        offsets = _to_float16(middle - np.float32(0.5) * max_code * scales.astype(np.float32))
        codes = affine_codes(x, scales, offsets, max_code)
        best.update(codes, scales, np.float32(0), offsets)
        for _ in range(_NUM_FITS):
            scales, offsets = _fitted_affine(x, codes, importance)
            codes = affine_codes(x, scales, offsets, max_code)
            best.update(codes, scales, np.float32(0), offsets)
    return best.codes, best.scales, best.offsets


def affine_codes(x: Array, scales: Array, offsets: Array, max_code: np.float32) -> Array:
    """Return the codes, from 0 to `max_code`, of blocks [..., values] with a scale and an offset each."""
    shifted = x - offsets.astype(np.float32)[..., None]
    codes: Array = np.clip(_rounded_codes(shifted, scales), 0, max_code)
    return codes


def _fitted_affine(x: Array, codes: Array, importance: Array | None) -> tuple[Array, Array]:
    """Return the scale and offset of least squared error for given codes; the scale is 0 if all codes are equal."""
    codes = codes.astype(np.float64)
    if importance is None:
        count: Any = float(x.shape[-1])
        weighted_x, weighted_codes = x, codes
    else:
        count = sum_in_order(importance.astype(np.float64))
        weighted_x, weighted_codes = x * importance, codes * importance
    sum_c, sum_cc, sum_x, sum_xc = (
        sum_in_order(weighted_codes),
        sum_in_order(weighted_codes * codes),
        sum_in_order(weighted_x),
        sum_in_order(weighted_x * codes),
    )
    determinant = count * sum_cc - sum_c * sum_c
    slope = np.divide(
        count * sum_xc - sum_c * sum_x, determinant, out=np.zeros_like(determinant), where=determinant != 0
    )
    offset = np.divide(sum_x - slope * sum_c, count, out=np.zeros_like(slope), where=np.asarray(count) != 0)
    return _to_float16(slope.astype(np.float32)), _to_float16(offset.astype(np.float32))


def _to_float16(values: Array) -> Array:
    """Round to float16, clipped to its largest finite value; a negative zero becomes a positive one."""
    return np.clip(values + np.float32(0), np.float32(-_MAX_FLOAT16), np.float32(_MAX_FLOAT16)).astype(np.float16)


def _signs(x: Array, lengths: Array) -> tuple[Array, Array]:
    """Quantise to 1 bit: codes are signs (zero counts as positive), the scale is the block's mean magnitude."""
    scales = (sum_in_order(np.abs(x)) / lengths).astype(np.float32).astype(np.float16)
    return np.where((x < 0) & (scales != 0)[..., None], -1, 1), scales


def _rounded_codes(x: Array, scales: Array) -> Array:
    """Return x / scale, rounded; 0 where a scale is 0."""
    inverse = inverses(scales.astype(np.float32))
    codes: Array = np.rint(x * inverse[..., None])
    return codes


def inverses(values: Array) -> Array:
    """Return 1 / value in float32, and 0 for 0."""
    inverse: Array = np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)
    return inverse


def sum_in_order(values: Array) -> Array:
    """Return the sums of blocks, added up in order, in float64."""
    # NumPy adds slices in order along any axis but the innermost in memory, where it sums by pairs.
    total: Array = np.add.reduce(np.ascontiguousarray(np.moveaxis(values, -1, 0)), axis=0, dtype=np.float64)
    return total


class _BestCandidate:
    """The candidate of least error so far, for each block [..., values] of x. Mutable.

    `weights` are those of squared errors, None for equal ones.
    """

    def __init__(self, x: Array, weights: Array | None = None) -> None:
        self.codes = np.zeros_like(x)
        self.scales = np.zeros(x.shape[:-1], np.float16)
        self.zeros = np.zeros(x.shape[:-1], np.float32)
        self.offsets = np.zeros(x.shape[:-1], np.float16)
        self._x, self._weights = x, weights
        self._errors = np.full(x.shape[:-1], np.inf)

    def update(self, codes: Array, scales: Array, zeros: Array | np.float32, offsets: Array | None = None) -> None:
        """Use a candidate for the blocks in which its (weighted) squared error is less than those of all before it."""
        values = scales.astype(np.float32)[..., None] * (codes - np.asarray(zeros)[..., None])
        if offsets is not None:
            values += offsets.astype(np.float32)[..., None]
        errors = (self._x - values).astype(np.float64)
        squares = errors * errors
        total = sum_in_order(squares if self._weights is None else self._weights * squares)
        is_better = total < self._errors
        self._errors[is_better] = total[is_better]
        np.copyto(self.codes, codes, where=is_better[..., None])
        np.copyto(self.scales, scales, where=is_better)
        np.copyto(self.zeros, zeros, where=is_better)
        if offsets is not None:
            np.copyto(self.offsets, offsets, where=is_better)
