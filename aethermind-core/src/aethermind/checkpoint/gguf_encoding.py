"""Encoders of GGUF's block types: values are quantised, and their codes and scales are packed into ggml's blocks.

`gguf_blocks` has the layouts and reads them. Scales are chosen as in `ops.quantization`, so that Q4_0, Q8_0
and Q4_K hold what the formats int4, int8 and int4_k hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.ops.quantization import QuantizedArrays, encode, inverses, row_chunks
from aethermind.ops.super_blocks import encode_super_blocks
from aethermind.ops.weight_format import WeightFormat

__all__ = ["BlockEncoding", "ENCODINGS"]

Array = npt.NDArray[Any]

_BLOCK, _SUPER_BLOCK = 32, 256


@dataclass(frozen=True, slots=True)
class BlockEncoding:
    """A block type: its number in a file, values and bytes of a block, and the functions that quantise and pack.

    `quantize(array, importance)` returns codes and scales of values [n, K], `pack(codes, num_blocks)` their blocks
    [num_blocks, num_bytes]. K is a multiple of `num_values`.
    """

    name: str
    number: int
    num_values: int
    num_bytes: int
    quantize: Callable[[Array, Array | None], QuantizedArrays]
    pack: Callable[[QuantizedArrays, int], Array]

    def row_bytes(self, num_columns: int) -> int:
        """The bytes of a row of K values."""
        return num_columns // self.num_values * self.num_bytes

    def encode(self, array: Array, importance: Array | None = None) -> Array:
        """Quantise values [N, K], with an `importance` as of `ops.quantization.encode`: uint8 [N, row_bytes].

        InvalidArgumentError for values that are not finite, or too large for float16 scales.
        """
        rows, columns = array.shape
        blocks = np.empty((rows, self.row_bytes(columns)), np.uint8)
        for chunk in row_chunks(array.shape):
            values = array[chunk].astype(np.float32)
            num_blocks = values.size // self.num_values
            blocks[chunk] = self.pack(self.quantize(values, importance), num_blocks).reshape(len(values), -1)
        return blocks


def _bytes_of(scales: Array) -> Array:
    """The bytes of float16 scales, one for each block: [n, 2]."""
    return np.ascontiguousarray(scales, np.float16).reshape(-1, 1).view(np.uint8)


def _pack_nibbles(codes: Array, group: int) -> Array:
    """Pack codes [n, values] of 4 bits: of every 2 · `group` values the first half is in the low nibbles."""
    low, high = np.moveaxis(codes.reshape(len(codes), -1, 2, group), 2, 0)
    packed: Array = (low | high << 4).reshape(len(codes), -1)
    return packed


def _pack_fifth_bits(codes: Array) -> Array:
    """Pack the fifth bits of codes [n, 32] into four bytes."""
    return np.packbits(codes >> 4 & 1, axis=1, bitorder="little")


def _unsigned(codes: Array, middle: int, num_blocks: int) -> Array:
    """Add `middle` to signed codes: uint8 [num_blocks, values]."""
    return (codes + np.int8(middle)).astype(np.uint8).reshape(num_blocks, -1)


def _pack_q4_0(quantised: QuantizedArrays, num_blocks: int) -> Array:
    codes = _unsigned(quantised.codes, 8, num_blocks)
    return np.concatenate([_bytes_of(quantised.scales), _pack_nibbles(codes, 16)], axis=1)


def _pack_q5_0(quantised: QuantizedArrays, num_blocks: int) -> Array:
    codes = _unsigned(quantised.codes, 16, num_blocks)
    return np.concatenate([_bytes_of(quantised.scales), _pack_fifth_bits(codes), _pack_nibbles(codes & 15, 16)], axis=1)


def _pack_q5_1(quantised: QuantizedArrays, num_blocks: int) -> Array:
    assert quantised.offsets is not None
    codes = quantised.codes.reshape(num_blocks, -1)
    parameters = (_bytes_of(quantised.scales), _bytes_of(quantised.offsets), _pack_fifth_bits(codes))
    return np.concatenate([*parameters, _pack_nibbles(codes & 15, 16)], axis=1)


def _pack_q8_0(quantised: QuantizedArrays, num_blocks: int) -> Array:
    codes = quantised.codes.view(np.uint8).reshape(num_blocks, -1)
    return np.concatenate([_bytes_of(quantised.scales), codes], axis=1)


def _pack_k_scales(quantised: QuantizedArrays, num_blocks: int) -> Array:
    """Pack the two float16 scales of each super-block, and eight pairs of 6-bit scales and offsets: uint8 [n, 16].

    The super-block scale of offsets is stored negated.
    """
    assert quantised.offsets is not None
    assert quantised.super_block_scales is not None
    factors = quantised.super_block_scales.reshape(num_blocks, 2) * np.array([1, -1], np.float16)
    scales, offsets = quantised.scales.reshape(num_blocks, 8), quantised.offsets.reshape(num_blocks, 8)
    first, second = (side[:, :4] | side[:, 4:] >> 4 << 6 for side in (scales, offsets))
    rest = scales[:, 4:] & 15 | (offsets[:, 4:] & 15) << 4
    return np.concatenate([np.ascontiguousarray(factors).view(np.uint8), first, second, rest], axis=1)


def _pack_q4_k(quantised: QuantizedArrays, num_blocks: int) -> Array:
    codes = quantised.codes.reshape(num_blocks, -1)
    return np.concatenate([_pack_k_scales(quantised, num_blocks), _pack_nibbles(codes, _BLOCK)], axis=1)


def _pack_q5_k(quantised: QuantizedArrays, num_blocks: int) -> Array:
    codes = quantised.codes.reshape(num_blocks, -1)
    shifted_fifths = (codes >> 4).reshape(num_blocks, 8, _BLOCK) << np.arange(8, dtype=np.uint8)[:, None]
    fifth_bits = np.bitwise_or.reduce(shifted_fifths, axis=1)
    return np.concatenate(
        [_pack_k_scales(quantised, num_blocks), fifth_bits, _pack_nibbles(codes & 15, _BLOCK)], axis=1
    )


def _quantize_q6_k(values: Array, importance: Array | None) -> QuantizedArrays:
    """Quantise to codes of 6 bits; 16 values share a scale, an int8 multiple of a float16 scale of 256 values."""
    quantised = encode(_Q6, values, importance)
    rows, columns = values.shape
    scales = quantised.scales.astype(np.float32).reshape(rows, -1, _SUPER_BLOCK // _Q6.block)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(-1)[..., None], -1)
    factors = (largest / np.float32(-128)).astype(np.float16)
    multiples = np.clip(np.rint(scales * inverses(factors.astype(np.float32))), -128, 127)
    block_scales = (multiples * factors.astype(np.float32)).reshape(rows, -1, 1)
    codes = np.clip(np.rint(values.reshape(rows, -1, _Q6.block) * inverses(block_scales)), -32, 31)
    return QuantizedArrays(
        codes.reshape(rows, columns).astype(np.int8), multiples.astype(np.int8), super_block_scales=factors[..., 0]
    )


def _pack_q6_k(quantised: QuantizedArrays, num_blocks: int) -> Array:
    assert quantised.super_block_scales is not None
    codes = _unsigned(quantised.codes, 32, num_blocks)
    pairs = (codes >> 4).reshape(num_blocks, 2, 4, _BLOCK) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(pairs, axis=2).reshape(num_blocks, -1)
    scales = quantised.scales.view(np.uint8).reshape(num_blocks, -1)
    return np.concatenate(
        [_pack_nibbles(codes & 15, 64), high, scales, _bytes_of(quantised.super_block_scales)], axis=1
    )


def _int_format(bits: int, block: int = _BLOCK, **options: Any) -> WeightFormat:
    return WeightFormat(f"int{bits}_of_{block}", bits, block, has_zero_point=False, **options)


_Q6 = _int_format(6, 16)


def _quantizer(bits: int, *, has_offset: bool = False) -> Callable[[Array, Array | None], QuantizedArrays]:
    """A function that quantises with one scale for each 32 values."""
    format = _int_format(bits, has_offset=has_offset)
    return lambda values, importance: encode(format, values, importance)


def _super_block_quantizer(bits: int) -> Callable[[Array, Array | None], QuantizedArrays]:
    """A function that quantises with scales and offsets of 32 values, which are multiples of those of 256 values."""
    format = _int_format(bits, has_offset=True, super_block_size=_SUPER_BLOCK)
    return lambda values, importance: encode_super_blocks(format, values, importance)


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        BlockEncoding("Q4_0", 2, _BLOCK, 18, _quantizer(4), _pack_q4_0),
        BlockEncoding("Q5_0", 6, _BLOCK, 22, _quantizer(5), _pack_q5_0),
        BlockEncoding("Q5_1", 7, _BLOCK, 24, _quantizer(5, has_offset=True), _pack_q5_1),
        BlockEncoding("Q8_0", 8, _BLOCK, 34, _quantizer(8), _pack_q8_0),
        BlockEncoding("Q4_K", 12, _SUPER_BLOCK, 144, _super_block_quantizer(4), _pack_q4_k),
        BlockEncoding("Q5_K", 13, _SUPER_BLOCK, 176, _super_block_quantizer(5), _pack_q5_k),
        BlockEncoding("Q6_K", 14, _SUPER_BLOCK, 210, _quantize_q6_k, _pack_q6_k),
    )
}
"""Block types by name. Those of 256 values (K-quants) need rows of multiples of 256."""
