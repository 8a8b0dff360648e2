"""Matrices of 4-bit integers in the order of tensor cores' registers: GPTQ's Marlin layout, and torchao's int4.

A lane t of a warp holds of the operand B of `mma.m16n8k16` (PTX ISA), a tile of 16 rows k and 8 columns n, the column
⌊t / 4⌋ and the rows 2 · (t mod 4) + {0, 1, 8, 9}. Eight codes are packed into int32, the first in the lowest bits:
those at even places of the lane's eight first, then those at odd ones. For a matrix [N, K]:

    marlin       X.B int32 [K / 16, 2 · N]: for each 64 columns n, for each lane and each 16 of them, the codes of two
                 tiles beside each other. X.s float16 [groups, N], columns of each 64 (of one group: 32) reordered. A
                 value is scale · (code − 8). X.workspace is not used
    torchao, tile-packed   X._weight_qdata int32 [N / 8, K / 128, 32, 4]: codes of two tiles one behind the other.
                 X._weight_scale_and_zero bfloat16 [groups, N, 2]. N is padded to a multiple of 8, K of 1024; the shape
                 is in the file's metadata
    torchao, plain         X._weight_qdata int8 [N, K / 2], two codes of either sign in a byte, the first in its low
                 bits; X._weight_scale and X._weight_zero_point [groups, N]

torchao's values are scale · (code − 8) + zero, for codes from 0. Codes are exact; as a weight format, scales and
offsets are rounded to float16. (Frantar et al. 2024; layouts as by the packages.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import (
    QuantizedTensors,
    dense_groups,
    group_format,
    group_weight,
    unpack_codes,
)
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["Int4Checkpoint", "MarlinCheckpoint", "int4_modules", "is_marlin"]

Array = npt.NDArray[Any]

_WEIGHT = ".weight"
_MIDDLE = 8
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The place in a word of each of a lane's eight codes."""
_LANES = np.arange(32)
_ROWS_OF_LANE = 2 * (_LANES % 4)[:, None] + np.array([0, 1, 8, 9])
"""The rows k of a tile that a lane holds, [32, 4]."""
_TILE, _TILES_BESIDE = 16, 4
_B, _S, _WORKSPACE = ".B", ".s", ".workspace"
_MARLIN_GROUP = 128
_DATA, _SCALE, _ZERO = "._weight_qdata", "._weight_scale", "._weight_zero_point"
_SCALE_AND_ZERO = "._weight_scale_and_zero"
_FLOATS = ("F16", "BF16", "F32")
_MAX_METADATA = 1 << 16


def is_marlin(described: Any) -> bool:
    """Whether a quantization_config of GPTQ says that the weights are in Marlin's layout."""
    names = (described.get("checkpoint_format"), described.get("format"))
    return bool(described.get("is_marlin_format")) or any(str(name).lower() == "marlin" for name in names)


def _nibbles(words: Array) -> Array:
    """Unpack int32 [...] to the eight codes of a lane in their order, uint8 [..., 8]."""
    flat = np.ascontiguousarray(words).reshape(-1, 1)
    return unpack_codes(flat, 4, 8)[:, _PLACES].reshape(*words.shape, 8)


class MarlinCheckpoint(QuantizedTensors):
    """A checkpoint of GPTQ in Marlin's layout, whose matrices are QuantizedWeights `X.weight`; implements
    `StoredTensors`. Immutable. All are exact.
    """

    def __init__(self, stored: StoredTensors, described: Any, where: str) -> None:
        """Check that the parts of each matrix fit together; `where` names the model in messages.

        Raises:
            ConfigError: the codes have not 4 bits.
            CheckpointError: there is no quantised matrix, or a part of one is missing or does not fit.
        """
        self._stored = stored
        self._where = where
        if described.get("bits", 4) != 4:
            raise ConfigError(
                f"{where!r} stores {described['bits']!r:.20} bits in Marlin's layout; 4 bits can be read. Take the "
                "model quantised by gptq in its own layout, or as .gguf."
            )
        modules = [name.removesuffix(_B) for name in stored.names if name.endswith(_B)]
        if not modules:
            raise CheckpointError(
                f"{where} says that it is quantised by gptq in Marlin's layout, and has no tensor *{_B}. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        self._names = frozenset(stored.names)
        self._infos = {f"{module}{_WEIGHT}": self._describe(module) for module in modules}
        parts = {f"{module}{part}" for module in modules for part in (_B, _S, _WORKSPACE)}
        self._unquantised_names = tuple(name for name in stored.names if name not in parts)

    def _weight(self, name: str) -> QuantizedWeight:
        module, info = name.removesuffix(_WEIGHT), self._infos[name]
        assert info.weight_format is not None
        rows, columns = info.shape
        words = _array(self._stored, f"{module}{_B}")
        tiles = np.empty((columns // _TILE, rows // 64, _TILE, 64), np.uint8)
        # A word is of a lane and of one of four tiles of 16 columns; its codes are of two tiles of 8 columns.
        beside = (_LANES // 4)[:, None] + 16 * np.arange(_TILES_BESIDE)
        of_column = np.repeat(beside[..., None], 8, axis=2) + np.repeat([0, 8], 4)
        of_row = np.broadcast_to(np.tile(_ROWS_OF_LANE, 2)[:, None], of_column.shape)
        tiles[:, :, of_row, of_column] = _nibbles(words.reshape(*tiles.shape[:2], 32, _TILES_BESIDE))
        codes = np.ascontiguousarray(tiles.transpose(1, 3, 0, 2)).reshape(rows, columns)
        stored = _array(self._stored, f"{module}{_S}")
        in_order: Array
        if len(stored) == 1:
            in_order = stored.reshape(-1, 4, 4, 2).transpose(0, 2, 1, 3)
        else:
            in_order = stored.reshape(-1, 8, 8).transpose(0, 2, 1)
        scales = np.ascontiguousarray(in_order.reshape(stored.shape).T)
        if not np.isfinite(scales).all():
            raise CheckpointError(f"{self._where} has {module}{_S} that are not finite. Fetch the weights again.")
        return group_weight(info.weight_format, codes, scales, None, _MIDDLE)

    def _describe(self, module: str) -> TensorInfo:
        words = self._stored.info(f"{module}{_B}")
        scales = self._stored.info(f"{module}{_S}") if f"{module}{_S}" in self._names else None
        if scales is not None and len(words.shape) == 2 == len(scales.shape) and words.dtype_name == "I32":
            (groups, rows), columns = scales.shape, words.shape[0] * _TILE
            is_grouped = groups == 1 or groups * _MARLIN_GROUP == columns
            format = group_format(4, 0 if groups == 1 else _MARLIN_GROUP, has_zeros=False)
            if scales.dtype_name == "F16" and words.shape[1] == 2 * rows and rows % 64 == 0 and is_grouped:
                return TensorInfo("marlin", (rows, columns), 0, words.num_bytes + scales.num_bytes, format)
        found = "nothing" if scales is None else f"{scales.dtype_name} {list(scales.shape)}"
        raise CheckpointError(
            f"{self._where} has {module}{_B} of {words.dtype_name} {list(words.shape)} with {found} as scales, which "
            "is not Marlin's layout. Check that quantization_config belongs to the weights."
        )


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of torchao: its shape, the columns that share a scale, and whether its codes are in tiles."""

    shape: tuple[int, int]
    group_size: int
    is_tiled: bool

    @property
    def format(self) -> WeightFormat:
        """The format with offsets that holds its groups."""
        found = parse_format("int4_offset" if self.group_size % 64 else "int4_offset_g64")
        assert found is not None, "the grammar has offsets"
        return found


def int4_modules(stored: StoredTensors) -> list[str]:
    """The modules of a checkpoint of torchao whose matrices have 4 bits."""
    names = frozenset(stored.names)
    modules = [name.removesuffix(_DATA) for name in stored.names if name.endswith(_DATA)]
    return [
        module
        for module in modules
        if f"{module}{_SCALE_AND_ZERO}" in names
        or (f"{module}{_ZERO}" in names and stored.info(f"{module}{_ZERO}").dtype_name in _FLOATS)
    ]


class Int4Checkpoint(QuantizedTensors):
    """A checkpoint of torchao whose matrices of 4 bits are QuantizedWeights `X.weight`; implements `StoredTensors`.
    Immutable. Other tensors are unchanged.
    """

    def __init__(self, stored: StoredTensors, modules: list[str], where: str) -> None:
        """Check that the parts of each matrix fit together; CheckpointError if not. `where` names the model."""
        self._stored = stored
        self._where = where
        self._shapes = _shapes_in_metadata(stored)
        self._matrices = {module: self._matrix(module) for module in modules}
        ends = (_DATA, _SCALE, _ZERO, _SCALE_AND_ZERO)
        parts = {f"{module}{end}" for module in modules for end in ends}
        self._unquantised_names = tuple(name for name in stored.names if name not in parts)
        self._infos = {
            f"{module}{_WEIGHT}": TensorInfo(
                "int4",
                matrix.shape,
                0,
                sum(stored.info(name).num_bytes for end in ends if (name := f"{module}{end}") in stored.names),
                matrix.format,
            )
            for module, matrix in self._matrices.items()
        }

    def _weight(self, name: str) -> QuantizedWeight:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        codes, scales, zeros = self._parts(module)
        with np.errstate(over="ignore", invalid="ignore"):
            sides = [part.astype(np.float16) for part in (scales, zeros - np.float32(_MIDDLE) * scales)]
        if not all(np.isfinite(side).all() for side in sides):
            raise CheckpointError(
                f"{self._where} has {module} with scales or zero points that are not finite in float16. Fetch the "
                "weights again."
            )
        per_group = matrix.group_size // matrix.format.block
        factors, offsets = (np.repeat(side, per_group, axis=1) for side in sides)
        return QuantizedWeight(matrix.format, codes, factors, None, offsets)

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        module = name.removesuffix(_WEIGHT)
        codes, scales, zeros = self._parts(module)
        groups = np.arange(codes.shape[1]) // self._matrices[module].group_size
        found = np.empty(codes.shape, dtype)
        for chunk in row_chunks(codes.shape):
            values = dense_groups(codes[chunk], scales[chunk], None, _MIDDLE, groups)
            values += zeros[chunk][:, groups]
            found[chunk] = values
        return found

    def _parts(self, module: str) -> tuple[Array, Array, Array]:
        """Codes from 0, uint8 [N, K], and scales and zero points, float32 [N, groups]."""
        matrix = self._matrices[module]
        rows, columns = matrix.shape
        data = _array(self._stored, f"{module}{_DATA}")
        if not matrix.is_tiled:
            codes = unpack_codes(data, 4, columns) ^ np.uint8(_MIDDLE)  # from 4 bits of either sign
            scales, zeros = (_array(self._stored, f"{module}{end}").T.astype(np.float32) for end in (_SCALE, _ZERO))
            return codes, scales, zeros
        num_tiles, num_blocks, _, num_words = data.shape
        # A word is of a lane and of two tiles of 16 columns k.
        of_column = np.tile(_ROWS_OF_LANE, 2) + np.repeat([0, 16], 4)
        tiles = np.empty((num_tiles, 8, num_blocks, num_words, 32), np.uint8)
        of_row = np.broadcast_to((_LANES // 4)[:, None], of_column.shape)
        tiles.transpose(0, 2, 3, 1, 4)[:, :, :, of_row, of_column] = _nibbles(data.transpose(0, 1, 3, 2))
        codes = tiles.reshape(num_tiles * 8, -1)[:rows, :columns]
        both = _array(self._stored, f"{module}{_SCALE_AND_ZERO}").astype(np.float32).transpose(2, 1, 0)
        scales, zeros = both[:, :rows, : columns // matrix.group_size]
        return np.ascontiguousarray(codes), np.ascontiguousarray(scales), np.ascontiguousarray(zeros)

    def _matrix(self, module: str) -> _Matrix:
        """Describe a matrix; CheckpointError for parts that are missing or do not fit."""
        names, data = self._stored.names, self._stored.info(f"{module}{_DATA}")
        is_tiled = f"{module}{_SCALE_AND_ZERO}" in names
        wanted = (_SCALE_AND_ZERO,) if is_tiled else (_SCALE, _ZERO)
        if missing := [end for end in wanted if f"{module}{end}" not in names]:
            raise CheckpointError(f"{self._where} has {module} without {missing[0][1:]}. Fetch the weights again.")
        sides = [self._stored.info(f"{module}{end}") for end in wanted]
        if any(side.dtype_name not in _FLOATS for side in sides):
            self._fail(module, data, sides[0])
        groups, rows = sides[0].shape[:2] if len(sides[0].shape) > 1 else (0, 0)
        if is_tiled:
            fits = data.dtype_name == "I32" and len(data.shape) == 4 and data.shape[2:] == (32, 4)
            padded = (8 * data.shape[0], 128 * data.shape[1]) if fits else (0, 0)
            fits = fits and sides[0].shape == (groups, padded[0], 2)
        else:
            fits = data.dtype_name in ("I8", "U8") and len(data.shape) == 2 and sides[1].shape == sides[0].shape
            padded = (data.shape[0], 2 * data.shape[1]) if fits else (0, 0)
            fits = fits and len(sides[0].shape) == 2 and rows == padded[0]
        group_size = padded[1] // max(groups, 1)
        shape = self._shapes.get(module, padded)
        fits_shape = all(0 < size <= most for size, most in zip(shape, padded, strict=True))
        if not fits or not groups or padded[1] % groups or group_size % 32 or not fits_shape or shape[1] % group_size:
            self._fail(module, data, sides[0])
        return _Matrix(shape, group_size, is_tiled)

    def _fail(self, module: str, data: TensorInfo, scales: TensorInfo) -> NoReturn:
        raise CheckpointError(
            f"{self._where} has {module}{_DATA} of {data.dtype_name} {list(data.shape)} with scales of "
            f"{scales.dtype_name} {list(scales.shape)}, which is no matrix of 4 bits in groups of 32 columns or more "
            "(torchao). Take the model unquantised and pass a format as quantization."
        )


def _shapes_in_metadata(stored: StoredTensors) -> dict[str, tuple[int, int]]:
    """The shapes of matrices by their modules, where the files' metadata have them."""
    found = {}
    for path in stored.paths:
        if path.suffix != ".safetensors":
            continue
        for name, text in SafetensorsFile(path).metadata.items():
            try:
                shape = json.loads(text)["_data"]["shape"] if len(text) < _MAX_METADATA else None
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if isinstance(shape, list) and len(shape) == 2 and all(type(size) is int for size in shape):
                found[name.removesuffix("._weight").removesuffix(_WEIGHT)] = (shape[0], shape[1])
    return found


def _array(stored: StoredTensors, name: str) -> Array:
    array = stored.array(name)
    assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
    return np.asarray(array)
