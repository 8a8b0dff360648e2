"""GGUF's quantised block types, and the weight formats that hold the same numbers.

A row is a sequence of blocks, each with its own scales (ggml's `block_q4_0` and so on):

    Q4_0 Q5_0 Q8_0    scale · (code − middle), 32 values per scale: the symmetric formats
    Q4_1 Q5_1         scale · code + offset, 32 values per scale: the formats with offsets
    Q4_K Q5_K         the same, with two levels of scales: scales and offsets of 32 values are 6-bit multiples of two
                      super-block scales of 256 values. Q4_K is the format int4_k; for Q5_K the products are rounded to
                      float16, with a relative error of 2⁻¹² at most
    IQ4_NL IQ4_XS     codes index 16 values of int8, which become the codes. Scales of IQ4_XS are 6-bit multiples of one
                      super-block scale of 256 values; the products are rounded to float16
    IQ2_XXS IQ3_XXS   codes index a codebook of vectors: scale · sign · magnitude. 32 values share a scale, an integer
    IQ3_S             multiple of one for 256 values: codes of int8 are exact
    IQ1_S             the same; a vector of −1, 0 and 1 is shifted by ±1/8, so that codes are 8 · element ± 1
    IQ2_XS IQ2_S      codebooks as well, but 16 values share a scale, which no weight format has: requantised as int8 of
    IQ1_M             32 values
    MXFP4             scale · element, 32 floating-point elements of 4 bits per scale, a power of two: the format mxfp4
    TQ1_0 TQ2_0       scale · (code − 1), 256 values per scale, codes from 0 to 2 (TQ2_0: 3): the format int2
    Q1_0              scale · sign, 128 values per scale: the format int1
    Q8_K              scale · code, 256 values per scale, a float32 number: rounded to float16
    Q2_K Q3_K Q6_K    16 values share a scale, which no weight format has: requantised as int8 of 32 values. The error
    NVFP4             of a value is half a step of int8 at most, 1/254 of the largest magnitude of its 32

Integer codes remain unchanged, except those that are requantised. The scales of IQ types are products, rounded to
float16. Their codebooks were found by search. They are taken from the `gguf` library, an extra that is imported when a
file has such a type. If values are read instead of a weight format, nothing of this is rounded or requantised: they are
the values of the block type, computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import INT8
from aethermind.ops.float_formats import E2M1, check_scales
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["BLOCK_TYPES", "BlockType"]

Array = npt.NDArray[Any]

_BLOCK = 32
_VALUES_PER_CHUNK = 1 << 18
"""Values that are decoded together, so that intermediate arrays remain in a core's cache. Two threads that decode
chunks are not faster than one: NumPy's calls are too short beside the interpreter's lock.
"""
_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The codebook of IQ4_NL and IQ4_XS: denser around zero, like weights."""


class _DecodedBlocks(NamedTuple):
    """Decoded blocks: codes [n, num_values], scales and offsets [n, groups], super-block scales [n, 1, 2].

    All groups have the same number of values. If the weight format has to round scales or offsets, or has larger
    groups, they are given in float32, as the block type has them.
    """

    codes: Array
    scales: Array
    offsets: Array | None = None
    super_block_scales: Array | None = None

    def values(self) -> Array:
        """Compute the values in float32, [n, num_values]; scales must be float32."""
        values = self.codes.reshape(*self.scales.shape, -1) * self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        dense: Array = values.reshape(self.codes.shape)
        return dense


@dataclass(frozen=True, slots=True)
class BlockType:
    """A quantised type of GGUF: values and bytes of a block, and the name of the weight format that it is read as.

    `decode(blocks)` decodes bytes [n, num_bytes], with the `gguf` library if `needs_library`. Zero points are 1.
    """

    name: str
    num_values: int
    num_bytes: int
    format_name: str
    decode: Callable[[Array], _DecodedBlocks]
    needs_library: bool = False

    @property
    def format(self) -> WeightFormat:
        """The weight format of tensors of this type."""
        format = parse_format(self.format_name)
        assert format is not None, "block types are read as formats of the core"
        return format

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """The bytes of a tensor whose last size is a multiple of `num_values`."""
        count = 1
        for size in shape:
            count *= size
        return count // self.num_values * self.num_bytes

    def read(self, stored: Array, shape: tuple[int, int]) -> QuantizedWeight:
        """Decode a tensor's bytes to a weight [N, K]; InvalidArgumentError for values that its format cannot hold."""
        rows, columns = shape
        blocks = (rows, columns // _BLOCK)
        format = self.format
        codes = np.empty(shape, format.code_dtype)
        scales = np.empty(blocks, format.scale_dtype)
        zeros = np.ones(blocks, np.uint8) if format.has_zero_point else None
        offsets = np.empty(blocks, format.scale_dtype) if format.has_offset else None
        super_block_shape = (rows, format.num_super_blocks(columns), 2) if format.super_block_size else None
        super_block_scales = None if super_block_shape is None else np.empty(super_block_shape, np.float16)
        for chunk, encoded in self._chunks(stored, shape):
            converted = self._as_weight_format(self.decode(encoded))
            for array, values in zip((codes, scales, offsets, super_block_scales), converted, strict=True):
                if array is not None and values is not None:
                    array[chunk] = values.reshape(array[chunk].shape)
        return QuantizedWeight(format, codes, scales, zeros, offsets, super_block_scales)

    def values(self, stored: Array, shape: tuple[int, int], dtype: npt.DTypeLike) -> Array:
        """Decode a tensor's bytes to dense values [N, K], computed in float32 and rounded once to `dtype`."""
        format = self.format
        values = np.empty(shape, dtype)
        for chunk, encoded in self._chunks(stored, shape):
            parts = self.decode(encoded)
            with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that they are finite
                if parts.scales.dtype == np.float32:
                    dense = parts.values()
                else:
                    codes, scales, offsets, super_block_scales = self._as_weight_format(parts)
                    zeros = np.ones(scales.shape, np.uint8) if format.has_zero_point else None
                    dense = format.dequantize(
                        QuantizedWeight(format, codes, scales, zeros, offsets, super_block_scales)
                    )
                values[chunk] = dense.reshape(values[chunk].shape)
        return values

    def _chunks(self, stored: Array, shape: tuple[int, int]) -> Iterator[tuple[slice, Array]]:
        """Yield slices of rows, and the bytes of the blocks of these rows, [n, num_bytes]."""
        rows, columns = shape
        by_row = stored.reshape(rows, stored.size // max(rows, 1))
        rows_per_chunk = max(1, _VALUES_PER_CHUNK // max(columns, 1))
        for begin in range(0, rows if columns else 0, rows_per_chunk):
            chunk = slice(begin, min(begin + rows_per_chunk, rows))
            yield chunk, by_row[chunk].reshape(-1, self.num_bytes)

    def _as_weight_format(self, parts: _DecodedBlocks) -> _DecodedBlocks:
        """Convert decoded blocks to groups and dtypes of the weight format; larger groups are requantised as int8."""
        codes, scales, offsets, super_block_scales = parts
        num_blocks = self.num_values // _BLOCK
        if scales.shape[1] > num_blocks:
            quantised = INT8.quantize(parts.values())
            return _DecodedBlocks(quantised.codes, quantised.scales)
        if scales.dtype == np.float32:
            with np.errstate(over="ignore"):  # the caller checks that they are finite
                scales = scales.astype(np.float16)
                offsets = None if offsets is None else offsets.astype(np.float16)
        return _DecodedBlocks(
            codes, np.repeat(scales, num_blocks // scales.shape[1], axis=1), offsets, super_block_scales
        )


def _float16(blocks: Array, begin: int, count: int = 1) -> Array:
    """View `count` float16 numbers of each block from byte `begin` on, [n, count]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2 * count]).view(np.float16)


def _nibbles(packed: Array, group: int) -> Array:
    """Unpack [n, bytes] to [n, 2 · bytes]: for every `group` bytes first the low nibbles, then the high ones.

    Groups are copied as single items, because NumPy's loops over so few bytes take several times as long.
    """
    flat, item = np.ascontiguousarray(packed).reshape(-1), np.dtype((np.void, group))
    codes = np.empty((flat.size // group, 2), item)
    codes[:, 0], codes[:, 1] = (flat & 15).view(item), (flat >> 4).view(item)
    return codes.view(np.uint8).reshape(len(packed), -1)


def _fifth_bits(stored: Array) -> Array:
    """Unpack four bytes with the fifth bits of 32 codes to 0 or 16 for each code."""
    bits: Array = np.unpackbits(stored, axis=1, bitorder="little")
    return bits << 4


def _decode_q4_0(blocks: Array) -> _DecodedBlocks:
    codes = _nibbles(blocks[:, 2:], 16).view(np.int8)
    codes -= np.int8(8)
    return _DecodedBlocks(codes, _float16(blocks, 0))


def _decode_q4_1(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(_nibbles(blocks[:, 4:], 16), _float16(blocks, 0), _float16(blocks, 2))


def _decode_q5_0(blocks: Array) -> _DecodedBlocks:
    codes = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return _DecodedBlocks(codes.view(np.int8) - np.int8(16), _float16(blocks, 0))


def _decode_q5_1(blocks: Array) -> _DecodedBlocks:
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _DecodedBlocks(codes, _float16(blocks, 0), _float16(blocks, 2))


def _decode_q8_0(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(blocks[:, 2:].view(np.int8), _float16(blocks, 0))


def _k_scales(blocks: Array) -> tuple[Array, Array, Array]:
    """Decode the scales and offsets of eight groups of 32 values, 6 bits each in 12 bytes, and the super-block scales.

    The bits of the last four of each are split over two bytes. Super-block scales are [n, 1, 2]; offsets are stored
    negated.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales, offsets, (_float16(blocks, 0, 2) * np.array([1, -1], np.float16))[:, None]


def _decode_q4_k(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(_nibbles(blocks[:, 16:], 32), *_k_scales(blocks))


def _decode_q5_k(blocks: Array) -> _DecodedBlocks:
    groups = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> groups & 1) << 4
    codes = _nibbles(blocks[:, 48:], 32) | fifth.reshape(len(blocks), -1)
    scales, offsets, super_block_scales = _k_scales(blocks)
    factors = super_block_scales.astype(np.float32)
    return _DecodedBlocks(codes, factors[..., 0] * scales, factors[..., 1] * offsets)


def _unpack_bit_pairs(stored: Array) -> Array:
    """Unpack 64 bytes, two bits for each of 256 values: a byte holds those of four values, 32 apart, of one half."""
    pairs: Array = stored.reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    return pairs.reshape(len(stored), -1)


def _decode_q2_k(blocks: Array) -> _DecodedBlocks:
    factors = _float16(blocks, 80, 2).astype(np.float32)
    scales, offsets = factors[:, :1] * (blocks[:, :16] & 15), factors[:, 1:] * (blocks[:, :16] >> 4)
    return _DecodedBlocks(_unpack_bit_pairs(blocks[:, 16:80]), scales, -offsets)


def _decode_q3_k(blocks: Array) -> _DecodedBlocks:
    # The third bit of value 32 · g + i is bit g of byte i; if it is 0, 4 is subtracted.
    third = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = (_unpack_bit_pairs(blocks[:, 32:96]) | third.reshape(len(blocks), -1) << 2).view(np.int8) - np.int8(4)
    low = np.concatenate([blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4], axis=1)
    upper = blocks[:, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    multiples = (low | upper.reshape(low.shape) << 4).view(np.int8) - np.int8(32)
    return _DecodedBlocks(codes, multiples * _float16(blocks, 108).astype(np.float32))


def _decode_q6_k(blocks: Array) -> _DecodedBlocks:
    low = _nibbles(blocks[:, :128], 64)
    codes = (low | _unpack_bit_pairs(blocks[:, 128:192]) << 4).view(np.int8) - np.int8(32)
    return _DecodedBlocks(codes, blocks[:, 192:208].view(np.int8) * _float16(blocks, 208).astype(np.float32))


def _decode_iq4_nl(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(_IQ4_VALUES[_nibbles(blocks[:, 2:], 16)], _float16(blocks, 0))


def _decode_iq4_xs(blocks: Array) -> _DecodedBlocks:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    upper = blocks[:, 2:4, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    multiples = (low | upper.reshape(low.shape) << 4).view(np.int8) - np.int8(32)
    return _DecodedBlocks(_IQ4_VALUES[_nibbles(blocks[:, 8:], 16)], multiples * _float16(blocks, 0).astype(np.float32))


def _decode_mxfp4(blocks: Array) -> _DecodedBlocks:
    check_scales(blocks[:, 0])
    return _DecodedBlocks(_nibbles(blocks[:, 1:], 16), blocks[:, :1])


def _decode_nvfp4(blocks: Array) -> _DecodedBlocks:
    """Four groups of 16 elements with scales of eight bits, E4M3 without a sign, in which 127 stands for 0."""
    import ml_dtypes

    scales = blocks[:, :4].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scales[blocks[:, :4] == 127] = 0
    return _DecodedBlocks(E2M1[_nibbles(blocks[:, 4:], 8)], scales)


def _decode_q8_k(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(blocks[:, 4:260].view(np.int8), np.ascontiguousarray(blocks[:, :4]).view(np.float32))


def _decode_q1_0(blocks: Array) -> _DecodedBlocks:
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").view(np.int8)
    return _DecodedBlocks(2 * signs - np.int8(1), _float16(blocks, 0))


def _decode_tq2_0(blocks: Array) -> _DecodedBlocks:
    return _DecodedBlocks(_unpack_bit_pairs(blocks[:, :64]), _float16(blocks, 64))


def _decode_tq1_0(blocks: Array) -> _DecodedBlocks:
    """Five digits of base 3 in a byte, read from the top: a byte is the digits' fraction of 256, rounded up."""
    digits = [
        (stored[:, None] * _POWERS_OF_3[:count, None]).reshape(len(blocks), -1)
        for stored, count in ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    ]
    codes = np.concatenate(digits, axis=1).astype(np.uint16) * np.uint16(3) >> 8
    return _DecodedBlocks(codes.astype(np.uint8), _float16(blocks, 52))


_NIBBLE_SHIFTS = np.array([0, 4], np.uint8)
_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


@cache
def _codebook(name: str) -> Array:
    """The vectors of a type, int8 [count, 4 or 8], each as one integer, so that a vector is taken in one step."""
    from gguf import quants

    library_type = getattr(quants, name)
    library_type.init_grid()
    vectors = library_type.grid.reshape(library_type.grid_shape).astype(np.int8)
    codebook: Array = np.ascontiguousarray(vectors).view(f"<u{vectors.shape[1]}")[:, 0]
    return codebook


@cache
def _sign_vectors() -> Array:
    """The signs of eight values by their bits: 1, or −1 where a bit is set; each as one integer."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    signs: Array = (1 - 2 * bits.view(np.int8)).view("<u8")[:, 0]
    return signs


def _block_scales(blocks: Array) -> Array:
    """The float16 scale at the beginning of each block, as float32 [n, 1]."""
    return _float16(blocks, 0).astype(np.float32)


def _look_up(table: Array, indices: Array) -> Array:
    """Look up vectors in a table by their indices: int8 [n, values]."""
    vectors: Array = np.ascontiguousarray(table[indices]).view(np.int8)
    return vectors.reshape(len(indices), -1)


def _with_parity(seven: Array) -> Array:
    """Add an eighth sign bit to each seven, which makes the number of set bits even."""
    seven = seven.astype(np.uint8)
    parity = seven ^ seven >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    complete: Array = seven | parity << 7
    return complete


def _view_as(blocks: Array, begin: int, end: int, dtype: str) -> Array:
    """View bytes `begin` to `end` of each block as numbers of a dtype, [n, count]."""
    return np.ascontiguousarray(blocks[:, begin:end]).view(dtype)


def _alternating_nibbles(stored: Array) -> Array:
    """Unpack bytes to nibbles, the low nibble of each byte before its high one."""
    nibbles: Array = stored[:, :, None] >> _NIBBLE_SHIFTS & 15
    return nibbles.reshape(len(stored), -1)


def _decode_iq2_xxs(blocks: Array) -> _DecodedBlocks:
    words = _view_as(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    return _decode_signed("IQ2_XXS", indices, words[:, :, 1], _block_scales(blocks) * np.float32(0.25))


def _decode_iq3_xxs(blocks: Array) -> _DecodedBlocks:
    return _decode_signed(
        "IQ3_XXS", blocks[:, 2:66], _view_as(blocks, 66, 98, "<u4"), _block_scales(blocks) * np.float32(0.5)
    )


def _decode_signed(name: str, indices: Array, words: Array, factors: Array) -> _DecodedBlocks:
    """Decode vectors whose signs and scales are in words uint32 [n, 8]: four times seven sign bits, and a scale of four
    bits. `factors` are the scales of blocks, float32 [n, 1].
    """
    signs = _with_parity(words[:, :, None] >> _SIGN_SHIFTS & 127).reshape(len(words), -1)
    codes = _look_up(_codebook(name), indices) * _look_up(_sign_vectors(), signs)
    return _DecodedBlocks(codes, factors * (np.float32(0.5) + (words >> 28).astype(np.float32)))


def _decode_iq2_xs(blocks: Array) -> _DecodedBlocks:
    words = _view_as(blocks, 2, 66, "<u2")
    codes = _look_up(_codebook("IQ2_XS"), words & 511) * _look_up(_sign_vectors(), _with_parity(words >> 9))
    return _DecodedBlocks(
        codes, _block_scales(blocks) * (np.float32(0.5) + _alternating_nibbles(blocks[:, 66:74])) * np.float32(0.25)
    )


def _decode_iq2_s(blocks: Array) -> _DecodedBlocks:
    upper = blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    indices = blocks[:, 2:34] | upper.reshape(len(blocks), -1).astype(np.uint16) << 8
    codes = _look_up(_codebook("IQ2_S"), indices) * _look_up(_sign_vectors(), blocks[:, 34:66])
    return _DecodedBlocks(
        codes, _block_scales(blocks) * (np.float32(0.5) + _alternating_nibbles(blocks[:, 74:82])) * np.float32(0.25)
    )


def _decode_iq3_s(blocks: Array) -> _DecodedBlocks:
    upper = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")
    codes = _look_up(_codebook("IQ3_S"), blocks[:, 2:66] | upper.astype(np.uint16) << 8)
    codes *= _look_up(_sign_vectors(), blocks[:, 74:106])
    return _DecodedBlocks(
        codes, _block_scales(blocks) * (1 + 2 * _alternating_nibbles(blocks[:, 106:110]).astype(np.float32))
    )


def _shifted_codes(indices: Array, is_negative: Array) -> Array:
    """Codes 8 · element ± 1 of vectors of −1, 0 and 1, where `is_negative` says which sign a vector has: int8 [n,
    256].
    """
    codes = _look_up(_codebook("IQ1_S"), indices) << 3
    shifts = np.where(is_negative, np.int8(-1), np.int8(1))
    codes += np.repeat(shifts, 8, axis=1)
    return codes


def _decode_iq1_s(blocks: Array) -> _DecodedBlocks:
    high = _view_as(blocks, 34, 50, "<u2")
    upper = high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    indices = blocks[:, 2:34] | upper.reshape(len(blocks), -1) << 8
    codes = _shifted_codes(indices, np.repeat(high >> 15 == 1, 4, axis=1))
    return _DecodedBlocks(codes, _block_scales(blocks) * (2 * (high >> 12 & 7) + 1).astype(np.float32) / np.float32(8))


def _decode_iq1_m(blocks: Array) -> _DecodedBlocks:
    high = _alternating_nibbles(blocks[:, 32:48])
    codes = _shifted_codes(blocks[:, :32] | (high & 7).astype(np.uint16) << 8, high >> 3 == 1)
    words = _view_as(blocks, 48, 56, "<u2")
    scale = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    factors = scale.view(np.float16).astype(np.float32)
    multiples = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    return _DecodedBlocks(codes, factors * (2 * multiples + 1).astype(np.float32) / np.float32(8))


BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, "int4", _decode_q4_0),
    3: BlockType("Q4_1", 32, 20, "int4_offset", _decode_q4_1),
    6: BlockType("Q5_0", 32, 22, "int8", _decode_q5_0),
    7: BlockType("Q5_1", 32, 24, "int8_offset", _decode_q5_1),
    8: BlockType("Q8_0", 32, 34, "int8", _decode_q8_0),
    10: BlockType("Q2_K", 256, 84, "int8", _decode_q2_k),
    11: BlockType("Q3_K", 256, 110, "int8", _decode_q3_k),
    12: BlockType("Q4_K", 256, 144, "int4_k", _decode_q4_k),
    13: BlockType("Q5_K", 256, 176, "int8_offset", _decode_q5_k),
    14: BlockType("Q6_K", 256, 210, "int8", _decode_q6_k),
    20: BlockType("IQ4_NL", 32, 18, "int8", _decode_iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, "int8", _decode_iq4_xs),
    15: BlockType("Q8_K", 256, 292, "int8", _decode_q8_k),
    34: BlockType("TQ1_0", 256, 54, "int2", _decode_tq1_0),
    35: BlockType("TQ2_0", 256, 66, "int2", _decode_tq2_0),
    39: BlockType("MXFP4", 32, 17, "mxfp4", _decode_mxfp4),
    40: BlockType("NVFP4", 64, 36, "int8", _decode_nvfp4),
    41: BlockType("Q1_0", 128, 18, "int1", _decode_q1_0),
    16: BlockType("IQ2_XXS", 256, 66, "int8", _decode_iq2_xxs, needs_library=True),
    17: BlockType("IQ2_XS", 256, 74, "int8", _decode_iq2_xs, needs_library=True),
    18: BlockType("IQ3_XXS", 256, 98, "int8", _decode_iq3_xxs, needs_library=True),
    19: BlockType("IQ1_S", 256, 50, "int8", _decode_iq1_s, needs_library=True),
    21: BlockType("IQ3_S", 256, 110, "int8", _decode_iq3_s, needs_library=True),
    22: BlockType("IQ2_S", 256, 82, "int8", _decode_iq2_s, needs_library=True),
    29: BlockType("IQ1_M", 256, 56, "int8", _decode_iq1_m, needs_library=True),
}
"""Block types by the type number in a tensor's header."""
