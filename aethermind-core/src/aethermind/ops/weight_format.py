"""Weight formats: how the values of a quantised weight [N, K] are stored.

A value is `scale · code`, `scale · (code − zero)` or `scale · code + offset`. Scales are float16, or integers times a
float16 that the blocks of a super-block share. A format is chosen by its name; the names of the core's formats have a
grammar:

    int8 int4 int2 int1     bits of a code; 32 values of a row share a scale
    int4_zp                 with a zero point as well (int2 always has one, int1 never)
    int4_offset             with a float16 offset, which need not be a multiple of the scale
    int4_k                  with an offset; scale and offset are 6-bit integers times the float16 scales of a super-
                            block of 256 values, as in llama.cpp's Q4_K
    int8_g64, int4_zp_g128  the number of values that share a scale (group size), a multiple of 32
    int8_channel            one scale per row (per-channel)

`mxfp4` has floating-point elements of 4 bits and powers of two as scales; `fp8` has elements of 8 bits and a float32
scale per row (`aethermind.ops.float_formats`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from aethermind.errors import InvalidArgumentError, PluginError
from aethermind.plugins.compatibility import deprecated_fields

__all__ = [
    "CHECKPOINT_FORMAT_NAMES",
    "DENSE",
    "FORMAT_NAMES",
    "FP8",
    "MXFP4",
    "QuantizedWeight",
    "WeightFormat",
    "WeightFormatRegistry",
    "fp8_in_blocks",
    "is_fp8_in_blocks",
    "one_level_format",
    "parse_format",
    "without_super_blocks",
]

Array = Any

DENSE = "dense"
"""The name of weights that are stored as floating-point numbers; there is no WeightFormat for it."""

FORMAT_NAMES = ("int8", "int8_channel", "fp8", "int4", "int4_g64", "int4_g128", "int4_zp", "int4_zp_g64",
                "int4_zp_g128", "int4_offset", "int4_offset_g64", "int4_k", "int2", "int1")  # fmt: skip
"""Names of the core's formats that help texts list; the grammar has more."""

CHECKPOINT_FORMAT_NAMES = ("int8_offset", "int8_g64", "int8_g128", "int8_zp", "int8_zp_g64", "int8_zp_g128",
                           "int8_zp_channel", "int4_channel", "int4_zp_channel", "mxfp4")  # fmt: skip
"""Further formats, in which quantised checkpoints are stored: a device should have kernels for them."""

_SCALE_BYTES = 2
_ZERO_BYTES = 1
_OFFSET_BYTES = 2
_SUPER_BLOCK_BYTES = 4
_SUB_SCALE_BITS = 12
_DEFAULT_BLOCK = 32
_MAX_BLOCK = 1024
_NAME = re.compile(r"int(8|4|2|1)(_zp|_offset)?(?:_g([1-9]\d*)|_(channel))?")
_K_QUANT = "int4_k"
_SUPER_BLOCK_SIZE = 256


@deprecated_fields(until="0.4", super_block="super_block_size")
@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A weight format: each value is a code of `bits` bits, and `block` values along K, a block, share a float16 scale.

    If `block` is 0, a row is one block; else the last block of a row may be shorter. A block has a zero point, an
    offset or neither, never both. If `super_block_size` is not 0, scales and offsets are 6-bit integers, each times a
    float16 scale that `super_block_size` values along K share (GGUF's `d` and `dmin`). The last super-block may be
    shorter. `super_block` is the deprecated name of `super_block_size`.

    A plugin's format is a subclass with its own `quantize`, `dequantize` and `nbytes`. Rows are quantised independently
    of each other, so they may be passed in chunks.
    """

    name: str
    bits: int
    block: int
    has_zero_point: bool
    has_offset: bool = False
    super_block_size: int = 0

    @property
    def code_dtype(self) -> str:
        """The NumPy dtype of codes."""
        return "uint8" if self.has_zero_point or self.has_offset else "int8"

    @property
    def scale_dtype(self) -> str:
        """The NumPy dtype of scales and offsets."""
        return "uint8" if self.super_block_size else "float16"

    @property
    def stride(self) -> int:
        """The values of a block or super-block: a row may be split at multiples of this number; not at all if 0."""
        return self.super_block_size or self.block

    def num_blocks(self, num_columns: int) -> int:
        """Return the number of scales of a row."""
        return -(-num_columns // self.block) if self.block else min(1, num_columns)

    def num_super_blocks(self, num_columns: int) -> int:
        """Return the number of super-blocks of a row, for a format that has them."""
        return -(-num_columns // self.super_block_size)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight [N, K].

        Codes of a row are packed without gaps; a scale and an offset take two bytes each, a zero point one. With
        super-blocks, scale and offset take 12 bits together, and the two scales of a super-block four bytes.
        """
        rows, columns = shape
        if self.super_block_size:
            sub_scale_bytes = -(-self.num_blocks(columns) * _SUB_SCALE_BITS // 8)
            super_block_bytes = self.num_super_blocks(columns) * _SUPER_BLOCK_BYTES
            return rows * (-(-columns * self.bits // 8) + sub_scale_bytes + super_block_bytes)
        per_block = _SCALE_BYTES + _ZERO_BYTES * self.has_zero_point + _OFFSET_BYTES * self.has_offset
        return rows * (-(-columns * self.bits // 8) + self.num_blocks(columns) * per_block)

    def bits_per_weight(self, shape: tuple[int, ...]) -> float:
        """Return the bits per value, scales and zero points included."""
        return 8 * self.nbytes(shape) / max(prod(shape), 1)

    def quantize(self, array: Array) -> QuantizedWeight:
        """Quantise a floating-point array [N, K]; InvalidArgumentError for values that are not finite or too large."""
        from aethermind.ops.quantization import encode
        from aethermind.ops.super_blocks import encode_super_blocks

        return QuantizedWeight(self, *(encode_super_blocks if self.super_block_size else encode)(self, array))

    def dequantize(self, weight: QuantizedWeight, dtype: Any = "float32") -> Array:
        """Return the values of a weight of this format, exact in float32, as an array of `dtype`."""
        from aethermind.ops.quantization import dequantize

        return dequantize(weight, dtype)


@deprecated_fields(until="0.4", units="super_block_scales")
@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A quantised weight [N, K]: an integer code for each value, one in an element, and scales for blocks of a row.

    `codes` [N, K] are int8, or uint8 in formats with zero points or offsets; `scales` [N, blocks] are float16, of
    either sign; `zeros` [N, blocks], the zero points, are uint8 or None; `offsets` are float16 or None.

    If the format has super-blocks, scales and offsets are uint8, up to 63, and are multiplied by the float16
    `super_block_scales` [N, super-blocks, 2] of either sign: one for scales, one for offsets. These are None otherwise.
    `units` is their deprecated name. A plugin's format may have other dtypes (`WeightFormat.code_dtype`).

    InvalidArgumentError if dtypes or shapes do not fit the format.
    """

    format: WeightFormat
    codes: Array
    scales: Array
    zeros: Array | None = None
    offsets: Array | None = None
    super_block_scales: Array | None = None

    def __post_init__(self) -> None:
        has_zeros, has_offsets = self.format.has_zero_point, self.format.has_offset
        rows, columns = self.codes.shape
        blocks = (rows, self.format.num_blocks(columns))
        has_super_blocks = bool(self.format.super_block_size)
        scale_dtype = self.format.scale_dtype
        expected: dict[str, tuple[Array, str, tuple[int, ...]]] = {
            "codes": (self.codes, self.format.code_dtype, (rows, columns)),
            "scales": (self.scales, scale_dtype, blocks),
            **({"zeros": (self.zeros, "uint8", blocks)} if has_zeros else {}),
            **({"offsets": (self.offsets, scale_dtype, blocks)} if has_offsets else {}),
        }
        if has_super_blocks:
            super_blocks = (rows, self.format.num_super_blocks(columns), 2)
            expected["super_block_scales"] = (self.super_block_scales, "float16", super_blocks)
        for field, (array, dtype, shape) in expected.items():
            actual = None if array is None else (str(array.dtype), array.shape)
            if actual != (dtype, shape):
                raise InvalidArgumentError(
                    f"The {field} of a weight in {self.format.name} should be {dtype}{list(shape)}, got "
                    + ("none." if actual is None else f"{actual[0]}{list(actual[1])}.")
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        rows, columns = self.codes.shape
        return rows, columns

    def rows(self, begin: int, end: int) -> QuantizedWeight:
        """Return the rows from `begin` to `end`, as views."""
        return self.take_rows(slice(begin, end))

    def take_rows(self, index: Any) -> QuantizedWeight:
        """Return the rows that NumPy's indexing by `index` selects: `codes[index]` and so on."""
        optional = (self.zeros, self.offsets, self.super_block_scales)
        selected = (None if array is None else array[index] for array in optional)
        return QuantizedWeight(self.format, self.codes[index], self.scales[index], *selected)


@dataclass(frozen=True, slots=True)
class _Mxfp4(WeightFormat):
    """The format mxfp4: codes are uint8 from 0 to 15, scales uint8, the exponents of powers of two."""

    @property
    def code_dtype(self) -> str:
        """The NumPy dtype of codes."""
        return "uint8"

    @property
    def scale_dtype(self) -> str:
        """The NumPy dtype of scales."""
        return "uint8"

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight [N, K]: half a byte for a code, one for a scale."""
        rows, columns = shape
        return rows * (-(-columns // 2) + self.num_blocks(columns))

    def quantize(self, array: Array) -> QuantizedWeight:
        """Quantise a floating-point array [N, K]; InvalidArgumentError for values that are not finite."""
        from aethermind.ops.float_formats import encode_mxfp4

        return QuantizedWeight(self, *encode_mxfp4(array))

    def dequantize(self, weight: QuantizedWeight, dtype: Any = "float32") -> Array:
        """Return the values of a weight of this format, exact in float32, as an array of `dtype`."""
        from aethermind.ops.float_formats import dequantize_mxfp4

        return dequantize_mxfp4(weight, dtype)


MXFP4 = _Mxfp4("mxfp4", bits=4, block=_DEFAULT_BLOCK, has_zero_point=False)
"""The format in which gpt-oss is published (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True)
class _Fp8(WeightFormat):
    """The format fp8: codes are float8_e4m3fn, scales float32, one for each row or block of a row."""

    @property
    def code_dtype(self) -> str:
        """The NumPy dtype of codes."""
        return "float8_e4m3fn"

    @property
    def scale_dtype(self) -> str:
        """The NumPy dtype of scales."""
        return "float32"

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight [N, K]: one for a code, four for a scale."""
        rows, columns = shape
        return rows * (columns + 4 * self.num_blocks(columns))

    def quantize(self, array: Array) -> QuantizedWeight:
        """Quantise a floating-point array [N, K]; InvalidArgumentError for values that are not finite."""
        from aethermind.ops.float_formats import encode_fp8

        return QuantizedWeight(self, *encode_fp8(array, self.block))

    def dequantize(self, weight: QuantizedWeight, dtype: Any = "float32") -> Array:
        """Return the values of a weight of this format, products in float32, as an array of `dtype`."""
        from aethermind.ops.float_formats import dequantize_fp8

        return dequantize_fp8(weight, dtype)


FP8 = _Fp8("fp8", bits=8, block=0, has_zero_point=False)
"""The format of FP8 checkpoints with a scale for each output (OCP 8-bit Floating Point)."""


def fp8_in_blocks(block: int) -> WeightFormat:
    """Return the format of FP8 checkpoints with a scale for each `block` columns of a row.

    No kernel reads it: devices hold such weights in another format.
    """
    return _Fp8(f"fp8_g{block}", bits=8, block=block, has_zero_point=False)


def is_fp8_in_blocks(format: WeightFormat) -> bool:
    """Whether a format is one of `fp8_in_blocks`."""
    return isinstance(format, _Fp8) and format.block > 0


_FLOAT_FORMATS = {format.name: format for format in (MXFP4, FP8)}


def parse_format(name: str) -> WeightFormat | None:
    """Return the core's format of this name, or None if the grammar has no such name; `_g32` may be left out."""
    if name == _K_QUANT:
        return WeightFormat(
            name, 4, _DEFAULT_BLOCK, has_zero_point=False, has_offset=True, super_block_size=_SUPER_BLOCK_SIZE
        )
    if name in _FLOAT_FORMATS:
        return _FLOAT_FORMATS[name]
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    bits = int(match[1])
    block = 0 if match[4] else int(match[3] or _DEFAULT_BLOCK)
    if block % 32 or block > _MAX_BLOCK or (match[2] and bits < 4):
        return None
    canonical = name.removesuffix(f"_g{_DEFAULT_BLOCK}")
    return WeightFormat(
        canonical, bits, block, has_zero_point=match[2] == "_zp" or bits == 2, has_offset=match[2] == "_offset"
    )


def one_level_format(format: WeightFormat) -> WeightFormat:
    """Return the format with the codes of `format` whose scales and offsets are float16, without super-blocks."""
    one_level = parse_format(f"int{format.bits}_offset_g{format.block}")
    assert one_level is not None, "the grammar has offsets for blocks of any size"
    return one_level


def without_super_blocks(weight: QuantizedWeight) -> QuantizedWeight:
    """Return a weight in `one_level_format`: the same codes, scales and offsets rounded to float16.

    The relative rounding error is at most 2⁻¹².
    """
    from aethermind.ops.quantization import float16_scales

    return QuantizedWeight(one_level_format(weight.format), weight.codes, *float16_scales(weight))


class WeightFormatRegistry:
    """Weight formats by name. Plugins register theirs; then the registry is frozen."""

    def __init__(self) -> None:
        self._families: list[tuple[Callable[[str], WeightFormat | None], tuple[str, ...], str]] = []
        self._is_frozen = False

    def register(self, parse: Callable[[str], WeightFormat | None], *, names: Sequence[str], provider: str) -> None:
        """Add formats: `parse(name)` returns one or None, `names` are those that help texts list.

        PluginError if one of the names exists already.
        """
        assert not self._is_frozen, "registries are frozen after boot"
        for name in names:
            taken = DENSE if name == DENSE else next((owner for other, _, owner in self._families if other(name)), None)
            if taken is not None:
                raise PluginError(
                    f"Weight format {name!r} of {provider} exists already ({taken}); give it another name."
                )
        self._families.append((parse, tuple(names), provider))

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def names(self) -> list[str]:
        """Return the names that help texts list, in the order of registration."""
        return [name for _, names, _ in self._families for name in names]

    def get(self, name: str) -> WeightFormat | None:
        """Return the format of this name, None for `dense`; InvalidArgumentError suggests the nearest names."""
        if name == DENSE:
            return None
        for parse, _, _ in self._families:
            found = parse(name)
            if found is not None:
                return found
        from difflib import get_close_matches

        known = [*self.names(), DENSE]
        close = get_close_matches(name, known, n=2)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise InvalidArgumentError(f"Unknown weight format {name!r}.{hint} Known: {', '.join(known)}.")
