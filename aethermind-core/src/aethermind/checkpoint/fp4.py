"""Matrices of 4-bit floating-point elements (E2M1), two in a byte, the first in its low bits: NVFP4 and MXFP4.

    compressed-tensors, NVFP4   X.weight_packed uint8 [N, K / 2], X.weight_scale float8_e4m3fn [N, K / 16],
                                X.weight_global_scale float32: element · scale / global scale
    compressed-tensors, MXFP4   X.weight_packed, X.weight_scale uint8 [N, K / 32], exponents of powers of two: the
                                format mxfp4
    ModelOpt, NVFP4             X.weight uint8 [N, K / 2], X.weight_scale as above, X.weight_scale_2 float32:
                                element · scale · second scale
    gpt-oss, MXFP4              experts X_blocks uint8 [E, N, K / 32, 16], X_scales uint8 [E, N, K / 32]

NVFP4 has a scale for 16 values, which no weight format has: it is requantised as int8. Scales of activations are not
used. (OCP Microscaling Formats 1.0 has the elements; the layouts are those of the packages.)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.integer_groups import INT8
from aethermind.checkpoint.quantized_tensors import QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.mxfp4 import E2M1, check_scales
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import MXFP4, QuantizedWeight

__all__ = ["Fp4Checkpoint", "Mxfp4Checkpoint", "has_fp4", "unpack_pairs"]

Array = npt.NDArray[Any]

_WEIGHT, _PACKED, _SCALE = ".weight", ".weight_packed", ".weight_scale"
_GLOBAL_SCALE, _SECOND_SCALE = ".weight_global_scale", ".weight_scale_2"
_NVFP4_GROUP = 16
_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16


def has_fp4(stored: StoredTensors) -> bool:
    """Whether a checkpoint has matrices of 4-bit floating-point elements."""
    return any(_module(stored, name) is not None for name in stored.names)


def _module(stored: StoredTensors, name: str) -> str | None:
    """The module whose packed elements a tensor is, None for another tensor."""
    for end in (_PACKED, _WEIGHT):
        if name.endswith(end) and stored.info(name).dtype_name == "U8":
            return name.removesuffix(end)
    return None


def unpack_pairs(packed: Array) -> Array:
    """Unpack bytes [N, bytes] to codes of 4 bits [N, 2 · bytes]: first the low bits of a byte, then the high ones."""
    codes = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, ::2])
    np.right_shift(packed, 4, out=codes[:, 1::2])
    return codes


def _values_of(codes: Array, scales: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows of NVFP4, some at a time, with their float32 values."""
    for chunk in row_chunks(codes.shape):
        with np.errstate(all="ignore"):  # values that are not finite are refused
            values = E2M1[codes[chunk]] * np.repeat(scales[chunk], _NVFP4_GROUP, axis=1)
        yield chunk, values


class Fp4Checkpoint(QuantizedTensors):
    """A checkpoint whose matrices of 4-bit elements are QuantizedWeights `X.weight`, in mxfp4, or int8 for NVFP4;
    implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, where: str) -> None:
        """Check that elements and scales fit together; CheckpointError if not. `where` names the model in messages."""
        self._stored = stored
        self._where = where
        self._names = frozenset(stored.names)
        self._packed = {module: name for name in stored.names if (module := _module(stored, name)) is not None}
        self._infos = {f"{module}{_WEIGHT}": self._describe(module) for module in self._packed}
        ends = (_WEIGHT, _PACKED, _SCALE, _GLOBAL_SCALE, _SECOND_SCALE)
        parts = {f"{module}{end}" for module in self._packed for end in ends}
        self._others = tuple(name for name in stored.names if name not in parts)
        num_nvfp4 = sum(info.weight_format == INT8 for info in self._infos.values())
        warn_of_requantised(where, num_nvfp4, len(self._infos), "are NVFP4, with a scale for each 16 values")

    def _weight(self, name: str) -> QuantizedWeight:
        codes, scales = self._groups(name)
        try:
            if self._infos[name].weight_format == MXFP4:
                check_scales(scales)
                return QuantizedWeight(MXFP4, codes, scales)
            rows, columns = codes.shape
            found = QuantizedWeight(
                INT8, np.empty((rows, columns), np.int8), np.empty((rows, INT8.num_blocks(columns)), np.float16)
            )
            for chunk, values in _values_of(codes, scales):
                part = INT8.quantize(values)
                found.codes[chunk], found.scales[chunk] = part.codes, part.scales
            return found
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._where}: {name}: {error} Fetch the weights again.") from None

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        if self._infos[name].weight_format == MXFP4:
            return super()._values(name, dtype)
        codes, scales = self._groups(name)
        found = np.empty(codes.shape, dtype)
        for chunk, values in _values_of(codes, scales):
            found[chunk] = values
        return found

    def _groups(self, name: str) -> tuple[Array, Array]:
        """The codes of a matrix, and the scales of its groups: bytes for MXFP4, float32 for NVFP4."""
        module = name.removesuffix(_WEIGHT)
        codes = unpack_pairs(self._plain(self._packed[module]))
        scales = self._plain(f"{module}{_SCALE}")
        if self._infos[name].weight_format == MXFP4:
            return codes, scales
        with np.errstate(all="ignore"):  # values that are not finite are refused
            return codes, self._scales(module, scales)

    def _scales(self, module: str, scales: Array) -> Array:
        """The factors of groups of 16 values, float32 [N, groups]."""
        of_groups = scales.astype(np.float32)
        if f"{module}{_SECOND_SCALE}" in self._names:
            return of_groups * self._plain(f"{module}{_SECOND_SCALE}").astype(np.float32).reshape(1, 1)
        divisor = self._plain(f"{module}{_GLOBAL_SCALE}").astype(np.float32).reshape(1, 1)
        return of_groups / divisor

    def _describe(self, module: str) -> TensorInfo:
        packed = self._stored.info(self._packed[module])
        name = f"{module}{_SCALE}"
        scales = self._stored.info(name) if name in self._names else None
        if scales is not None and len(packed.shape) == 2 == len(scales.shape):
            rows, columns = packed.shape[0], 2 * packed.shape[1]
            nbytes = packed.num_bytes + scales.num_bytes
            if scales.dtype_name == "U8" and scales.shape == (rows, columns // 32) and columns % 32 == 0:
                return TensorInfo("mxfp4", (rows, columns), 0, nbytes, MXFP4)
            factors = [end for end in (_GLOBAL_SCALE, _SECOND_SCALE) if f"{module}{end}" in self._names]
            is_one = len(factors) == 1 and self._stored.info(f"{module}{factors[0]}").shape in ((), (1,), (1, 1))
            is_nvfp4 = scales.dtype_name == "F8_E4M3" and scales.shape == (rows, columns // _NVFP4_GROUP)
            if is_one and is_nvfp4 and columns % _NVFP4_GROUP == 0:
                return TensorInfo("nvfp4", (rows, columns), 0, nbytes, INT8)
        described = "no scales" if scales is None else f"scales of {scales.dtype_name} {list(scales.shape)}"
        raise CheckpointError(
            f"{self._where} has {self._packed[module]} of uint8 {list(packed.shape)} with {described}: this is neither "
            "NVFP4 nor MXFP4. Check that quantization_config belongs to the weights."
        )

    def _plain(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)


class Mxfp4Checkpoint(QuantizedTensors):
    """A checkpoint whose weights in mxfp4 are tensors `X`, described as [E, N, K] and read as QuantizedWeights
    [E · N, K]; implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, where: str) -> None:
        """Check that blocks and scales fit together; `where` names the model in messages.

        Raises:
            CheckpointError: there are no blocks, or blocks without scales of their shape.
        """
        self._stored = stored
        self._where = where
        self._infos = {
            name.removesuffix(_BLOCKS): self._describe(name.removesuffix(_BLOCKS))
            for name in stored.names
            if name.endswith(_BLOCKS)
        }
        if not self._infos:
            raise CheckpointError(
                f"{where} says that it is quantised by mxfp4, and has no tensor *{_BLOCKS}. Take quantization_config "
                "out of config.json if its weights are not quantised."
            )
        parts = {f"{name}{part}" for name in self._infos for part in (_BLOCKS, _SCALES)}
        self._others = tuple(name for name in stored.names if name not in parts)

    def _weight(self, name: str) -> QuantizedWeight:
        info = self._infos[name]
        rows, columns = prod(info.shape[:-1]), info.shape[-1]
        packed, scales = (np.asarray(self._stored.array(f"{name}{part}")) for part in (_BLOCKS, _SCALES))
        codes = np.empty((rows, columns), np.uint8)
        stored = packed.reshape(rows, columns // 2)
        np.bitwise_and(stored, 15, out=codes[:, ::2])
        np.right_shift(stored, 4, out=codes[:, 1::2])
        drop_mapped_pages(packed)
        try:
            check_scales(scales)
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._where}: {name}{_SCALES}: {error} Fetch the weights again.") from None
        return QuantizedWeight(MXFP4, codes, scales.reshape(rows, -1))

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        return super()._values(name, dtype).reshape(self._infos[name].shape)

    def _describe(self, name: str) -> TensorInfo:
        blocks = self._stored.info(f"{name}{_BLOCKS}")
        scales = self._stored.info(f"{name}{_SCALES}")
        are_bytes = blocks.dtype_name == scales.dtype_name == "U8"
        if not are_bytes or len(blocks.shape) < 3 or blocks.shape != (*scales.shape, _BLOCK_BYTES):
            raise CheckpointError(
                f"{self._where} has {name}{_BLOCKS} of {blocks.dtype_name} {list(blocks.shape)} with {_SCALES} of "
                f"{scales.dtype_name} {list(scales.shape)}: mxfp4 has bytes, {_BLOCK_BYTES} of codes for each scale."
            )
        *rows, num_blocks = scales.shape
        return TensorInfo("mxfp4", (*rows, num_blocks * MXFP4.block), 0, blocks.num_bytes + scales.num_bytes, MXFP4)
