"""Quantisation to formats with super-blocks (K-quants); `aethermind.ops.quantization` defines the other formats.

1. Each block gets the scale and offset that a format with float16 offsets would choose.
2. A super-block gets two float16 scales: its largest block scale, and its block offset farthest from zero, each divided
   by 63 and rounded up. The scale and offset of a block become integers from 0 to 63, which multiply these scales.
3. For each block, 15 pairs of integers around these are tried (scales up to one away, offsets up to two), each with the
   nearest codes. The pair with the least sum of squared errors is used, the first of equals.

The offsets of a super-block have one sign, which is negative if any of its blocks has a negative offset. A block with a
positive offset then gets the offset 0, and its search starts from the scale that maps its largest code to its largest
value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aethermind.ops.quantization import (
    QuantizedArrays,
    affine_codes,
    check_values,
    encode_affine,
    inverses,
    row_chunks,
    scales_of_super_blocks,
    strided_blocks,
    sum_in_order,
)

if TYPE_CHECKING:
    from aethermind.ops.weight_format import WeightFormat

__all__ = ["encode_super_blocks"]

Array = NDArray[Any]

_MAX_SUB_SCALE = 63
_SCALE_CHANGES, _OFFSET_CHANGES = (0, -1, 1), (0, -1, 1, -2, 2)


def encode_super_blocks(format: WeightFormat, array: Array, importance: Array | None = None) -> QuantizedArrays:
    """Quantise a floating-point array [N, K] to a format with super-blocks.

    `importance` and errors are those of `quantization.encode`.
    """
    rows, columns = array.shape
    codes = np.empty(array.shape, np.uint8)
    scales, offsets = np.empty((2, rows, format.num_blocks(columns)), np.uint8)
    super_block_scales = np.empty((rows, format.num_super_blocks(columns), 2), np.float16)
    num_full = columns // format.block
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32)
        check_values(values, format)
        affine = encode_affine(format, values, importance)
        super_block_scales[chunk], initial = _initial_sub_scales(format, values, affine)
        for blocks, begin, end in (
            (slice(0, num_full), 0, num_full * format.block),
            (slice(num_full, None), num_full * format.block, columns),
        ):
            if begin == end:
                continue
            blocked = strided_blocks(values[:, begin:end].reshape(len(values), -1, min(format.block, end - begin)))
            block_factors = scales_of_super_blocks(format, super_block_scales[chunk], initial.shape[1])[:, blocks]
            weights = None if importance is None else importance[begin:end].reshape(blocked.shape[1:])
            block_codes, scales[chunk, blocks], offsets[chunk, blocks] = _search(
                blocked, block_factors, initial[:, blocks], np.float32((1 << format.bits) - 1), weights
            )
            codes[chunk, begin:end] = block_codes.reshape(len(values), -1)
    return QuantizedArrays(codes, scales, None, offsets, super_block_scales)


def _initial_sub_scales(format: WeightFormat, values: Array, affine: QuantizedArrays) -> tuple[Array, Array]:
    """Return the super-block scales [n, super-blocks, 2] for values [n, K], and the integer scale and offset of each
    block, as float32 [n, blocks, 2]. `affine` holds the float16 scale and offset of each block.
    """
    assert affine.offsets is not None
    rows, blocks = affine.scales.shape
    columns = values.shape[1]
    blocks_per_super_block = format.super_block_size // format.block
    padded = np.zeros((2, rows, format.num_super_blocks(columns) * blocks_per_super_block), np.float32)
    padded[0, :, :blocks], padded[1, :, :blocks] = affine.scales, affine.offsets
    scales, offsets = padded.reshape(2, rows, -1, blocks_per_super_block)
    is_negative = offsets.min(-1) < 0
    largest = np.zeros((rows, padded.shape[2]), np.float32)
    largest[:, :blocks] = np.maximum.reduceat(values, np.arange(0, columns, format.block), axis=1)
    is_clamped = is_negative[..., None] & (offsets > 0)
    scales = np.where(is_clamped, largest.reshape(scales.shape) / np.float32((1 << format.bits) - 1), scales)
    offsets = np.where(is_clamped, np.float32(0), offsets)
    scale_of_scales = _super_block_scale(scales.max(-1))
    scale_of_offsets = _super_block_scale(np.abs(offsets).max(-1))
    scale_of_offsets = np.where(is_negative, -scale_of_offsets, scale_of_offsets)
    super_block_scales = np.stack([scale_of_scales, scale_of_offsets], axis=-1)
    multiples = np.stack([scales, offsets], axis=-1) * inverses(super_block_scales.astype(np.float32))[:, :, None]
    initial = np.clip(np.rint(multiples), 0, _MAX_SUB_SCALE).reshape(rows, -1, 2)[:, :blocks]
    return super_block_scales, initial


def _super_block_scale(largest: Array) -> Array:
    """Return the least float16 scales of which 63 times is at least `largest`."""
    scales = (largest / np.float32(_MAX_SUB_SCALE)).astype(np.float16)
    is_short = np.float32(_MAX_SUB_SCALE) * scales.astype(np.float32) < largest
    scales[is_short] = np.nextafter(scales[is_short], np.float16(np.inf))
    return scales


def _search(
    x: Array, super_block_scales: Array, initial: Array, max_code: np.float32, importance: Array | None
) -> tuple[Array, Array, Array]:
    """Return the best codes of blocks [n, blocks, values], and their integer scales and offsets [n, blocks].

    `super_block_scales` and `initial` are [n, blocks, 2]: the factors of scale and offset, and where the search starts.
    """
    codes = np.zeros_like(x)
    chosen = initial.copy()
    least_error = np.full(x.shape[:-1], np.inf)
    for scale_change in _SCALE_CHANGES:
        for offset_change in _OFFSET_CHANGES:
            tried = np.clip(initial + np.array([scale_change, offset_change], np.float32), 0, _MAX_SUB_SCALE)
            affine = tried * super_block_scales
            scales, offsets = affine[..., 0], affine[..., 1]
            nearest = affine_codes(x, scales, offsets, max_code)
            errors = (x - (scales[..., None] * nearest + offsets[..., None])).astype(np.float64)
            errors *= errors
            error = sum_in_order(errors if importance is None else errors * importance)
            is_better = error < least_error
            least_error[is_better] = error[is_better]
            np.copyto(codes, nearest, where=is_better[..., None])
            np.copyto(chosen, tried, where=is_better[..., None])
    return codes, chosen[..., 0], chosen[..., 1]
