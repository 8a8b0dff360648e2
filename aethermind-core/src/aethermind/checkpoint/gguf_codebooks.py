"""GGUF's block types whose codes index a codebook of vectors: IQ1, IQ2 and IQ3. Values are scale · sign · magnitude.

    IQ2_XXS IQ3_XXS IQ3_S    32 values share a scale, an integer multiple of one for 256 values: codes of int8 are exact
    IQ1_S                    the same; a vector of −1, 0 and 1 is shifted by ±1/8, so that codes are 8 · element ± 1
    IQ2_XS IQ2_S IQ1_M       16 values share a scale, which no weight format has: requantised as int8 of 32 values

Products of scales are rounded to float16 in a weight format. The codebooks were found by search, and are those of the
`gguf` library, an extra that is imported when a file has such a type.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CODEBOOK_DECODERS"]

Array = npt.NDArray[Any]

_NIBBLES = np.array([0, 4], np.uint8)
_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


@cache
def _codebook(name: str) -> Array:
    """The vectors of a type, int8 [count, 4 or 8], each as one integer, so that a vector is taken in one step."""
    from gguf import quants

    described = getattr(quants, name)
    described.init_grid()
    vectors = described.grid.reshape(described.grid_shape).astype(np.int8)
    codebook: Array = np.ascontiguousarray(vectors).view(f"<u{vectors.shape[1]}")[:, 0]
    return codebook


@cache
def _signs() -> Array:
    """The signs of eight values by their bits: 1, or −1 where a bit is set; each as one integer."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    signs: Array = (1 - 2 * bits.view(np.int8)).view("<u8")[:, 0]
    return signs


def _taken(table: Array, indices: Array) -> Array:
    """Take vectors out of a table: int8 [n, values]."""
    vectors: Array = np.ascontiguousarray(table[indices]).view(np.int8)
    return vectors.reshape(len(indices), -1)


def _with_parity(seven: Array) -> Array:
    """Complete seven sign bits by an eighth, such that the number of set ones is even."""
    seven = seven.astype(np.uint8)
    parity = seven ^ seven >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    complete: Array = seven | parity << 7
    return complete


def _factors(blocks: Array) -> Array:
    """The float16 scale of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)


def _numbers(blocks: Array, begin: int, end: int, dtype: str) -> Array:
    """View bytes of each block as numbers [n, count]."""
    return np.ascontiguousarray(blocks[:, begin:end]).view(dtype)


def _by_nibbles(stored: Array) -> Array:
    """Unpack bytes to their low and high nibbles in turn."""
    nibbles: Array = stored[:, :, None] >> _NIBBLES & 15
    return nibbles.reshape(len(stored), -1)


def _decode_iq2_xxs(blocks: Array) -> tuple[Array, Array]:
    words = _numbers(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    return _signed("IQ2_XXS", indices, words[:, :, 1], _factors(blocks) * np.float32(0.25))


def _decode_iq3_xxs(blocks: Array) -> tuple[Array, Array]:
    return _signed("IQ3_XXS", blocks[:, 2:66], _numbers(blocks, 66, 98, "<u4"), _factors(blocks) * np.float32(0.5))


def _signed(name: str, indices: Array, words: Array, factors: Array) -> tuple[Array, Array]:
    """Decode vectors whose signs and scales are in words [n, 8]: four times seven signs, and four bits of a scale."""
    signs = _with_parity(words[:, :, None] >> _SIGN_SHIFTS & 127).reshape(len(words), -1)
    codes = _taken(_codebook(name), indices) * _taken(_signs(), signs)
    return codes, factors * (np.float32(0.5) + (words >> 28).astype(np.float32))


def _decode_iq2_xs(blocks: Array) -> tuple[Array, Array]:
    words = _numbers(blocks, 2, 66, "<u2")
    codes = _taken(_codebook("IQ2_XS"), words & 511) * _taken(_signs(), _with_parity(words >> 9))
    return codes, _factors(blocks) * (np.float32(0.5) + _by_nibbles(blocks[:, 66:74])) * np.float32(0.25)


def _decode_iq2_s(blocks: Array) -> tuple[Array, Array]:
    upper = blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    indices = blocks[:, 2:34] | upper.reshape(len(blocks), -1).astype(np.uint16) << 8
    codes = _taken(_codebook("IQ2_S"), indices) * _taken(_signs(), blocks[:, 34:66])
    return codes, _factors(blocks) * (np.float32(0.5) + _by_nibbles(blocks[:, 74:82])) * np.float32(0.25)


def _decode_iq3_s(blocks: Array) -> tuple[Array, Array]:
    upper = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")
    codes = _taken(_codebook("IQ3_S"), blocks[:, 2:66] | upper.astype(np.uint16) << 8)
    codes *= _taken(_signs(), blocks[:, 74:106])
    return codes, _factors(blocks) * (1 + 2 * _by_nibbles(blocks[:, 106:110]).astype(np.float32))


def _shifted(indices: Array, is_negative: Array) -> Array:
    """Codes of vectors of −1, 0 and 1 with a shift by 1/8, of either sign, for each of the vectors: [n, 256]."""
    codes = _taken(_codebook("IQ1_S"), indices) << 3
    shifts = np.where(is_negative, np.int8(-1), np.int8(1))
    codes += np.repeat(shifts, 8, axis=1)
    return codes


def _decode_iq1_s(blocks: Array) -> tuple[Array, Array]:
    high = _numbers(blocks, 34, 50, "<u2")
    upper = high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    indices = blocks[:, 2:34] | upper.reshape(len(blocks), -1) << 8
    codes = _shifted(indices, np.repeat(high >> 15 == 1, 4, axis=1))
    return codes, _factors(blocks) * (2 * (high >> 12 & 7) + 1).astype(np.float32) / np.float32(8)


def _decode_iq1_m(blocks: Array) -> tuple[Array, Array]:
    high = _by_nibbles(blocks[:, 32:48])
    codes = _shifted(blocks[:, :32] | (high & 7).astype(np.uint16) << 8, high >> 3 == 1)
    words = _numbers(blocks, 48, 56, "<u2")
    scale = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    factors = scale.view(np.float16).astype(np.float32)
    multiples = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    return codes, factors * (2 * multiples + 1).astype(np.float32) / np.float32(8)


CODEBOOK_DECODERS = {
    "IQ1_S": _decode_iq1_s,
    "IQ1_M": _decode_iq1_m,
    "IQ2_XXS": _decode_iq2_xxs,
    "IQ2_XS": _decode_iq2_xs,
    "IQ2_S": _decode_iq2_s,
    "IQ3_XXS": _decode_iq3_xxs,
    "IQ3_S": _decode_iq3_s,
}
"""Decoders of blocks [n, bytes] by types: codes int8 [n, 256] and scales float32 [n, 8], or [n, 16]."""
