"""Checkpoints of matrices with floating-point elements of 8 or 4 bits: FP8 (E4M3), NVFP4 and MXFP4 (E2M1).

FP8: float8_e4m3fn codes [N, K], each matrix with a tensor of scales. A value is code · scale.

    X.weight            float8_e4m3fn [N, K]
    X.weight_scale      one number (per tensor), [N] or [N, 1] (per channel), [⌈N / n⌉, ⌈K / k⌉] (per block):
                        compressed-tensors (`float-quantized`, `mxfp8-quantized`), ModelOpt, quant_method fp8 or
                        fbgemm_fp8. Scales of the type uint8 are exponents of powers of two (E8M0)
    X.weight_scale_inv  the same for blocks of n × k values, `weight_block_size`: DeepSeek V3, Qwen3. Despite its name
                        it is a factor, too

NVFP4 and MXFP4: elements of 4 bits (E2M1), two in a byte, the first in its low bits.

    compressed-tensors, NVFP4   X.weight_packed uint8 [N, K / 2], X.weight_scale float8_e4m3fn [N, K / 16],
                                X.weight_global_scale float32: element · scale / global scale
    compressed-tensors, MXFP4   X.weight_packed, X.weight_scale uint8 [N, K / 32], exponents of powers of two: the
                                format mxfp4
    ModelOpt, NVFP4             X.weight uint8 [N, K / 2], X.weight_scale as above, X.weight_scale_2 float32:
                                element · scale · second scale
    gpt-oss, MXFP4              experts X_blocks uint8 [E, N, K / 32, 16], X_scales uint8 [E, N, K / 32]

NVFP4 has a scale for 16 values, which no weight format has: it is requantised as int8. Scales of activations
(`input_scale`) are not used: kernels compute one for each token. (OCP Microscaling Formats 1.0 defines the elements;
the layouts are those of the packages.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import INT8, QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.float_formats import E2M1, check_scales
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import FP8, MXFP4, QuantizedWeight, WeightFormat, fp8_in_blocks

__all__ = [
    "Fp4Checkpoint",
    "Fp8Checkpoint",
    "Mxfp4Checkpoint",
    "decode_e8m0",
    "has_fp4",
    "has_fp8",
    "read_block_size",
    "unpack_nibbles",
]

Array = npt.NDArray[Any]

_E4M3 = "F8_E4M3"
_WEIGHT = ".weight"
_SCALE_SUFFIXES = (".weight_scale", ".weight_scale_inv")
_INPUT_SCALE_SUFFIXES = (".input_scale", ".input_scale_ub", ".activation_scale")
_SCALE_DTYPES = ("F32", "BF16", "F16", "U8", "F8_E8M0")
_GROUP_STRATEGIES = ("group", "tensor_group")


def has_fp8(stored: StoredTensors) -> bool:
    """Whether a checkpoint has matrices `*.weight` of dtype float8_e4m3fn."""
    return any(name.endswith(_WEIGHT) and stored.info(name).dtype_name == _E4M3 for name in stored.names)


def decode_e8m0(stored: Array) -> Array:
    """Return the float32 values of biased exponents of powers of two (E8M0); 255 stands for NaN."""
    powers: Array = np.ldexp(np.float32(1), np.asarray(stored).astype(np.int32) - 127)
    return np.where(stored == 255, np.float32(np.nan), powers)


def read_block_size(config: Mapping[str, Any], model_name: str) -> tuple[int, int] | None:
    """Read the block size (n, k) of FP8 in `config`, a quantization_config; None for scales of rows or of whole
    matrices.

    ConfigError for unknown block sizes; `model_name` is for messages. Groups of compressed-tensors that are not FP8 are
    skipped.
    """
    sizes = [config.get("weight_block_size")]
    groups = config.get("config_groups") or {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping) or (weights.get("type"), weights.get("num_bits")) != ("float", 8):
            continue
        sizes.append(weights.get("block_structure"))
        if weights.get("strategy") in _GROUP_STRATEGIES:
            sizes.append([1, weights.get("group_size")])
    given = [tuple(size) if isinstance(size, list) else size for size in sizes if size is not None]
    if not given:
        return None
    size = given[0]
    if (
        any(other != size for other in given)
        or not isinstance(size, tuple)
        or len(size) != 2
        or not all(type(n) is int and n > 0 for n in size)
    ):
        listed = sorted({str(size) for size in given})
        raise ConfigError(f"{model_name!r} has blocks of {listed} values that share a scale; that is [n, k].")
    return size


class Fp8Checkpoint(QuantizedTensors):
    """An FP8 checkpoint whose matrices are QuantizedWeights in fp8, or in fp8 with a scale for each block of a row,
    with the values of the checkpoint; implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, block_size: tuple[int, int] | None, model_name: str) -> None:
        """Check that codes and scales fit together; `model_name` is for messages.

        Raises:
            CheckpointError: there are no codes, or scales are missing or have a shape that is not described.
        """
        self._stored = stored
        self._block_size = block_size
        self._model_name = model_name
        names = frozenset(stored.names)
        self._scale_names = {name: self._scale_name(name, names) for name in stored.names if self._is_fp8(name)}
        if not self._scale_names:
            raise CheckpointError(
                f"{model_name} says that it is quantised to FP8, and has no tensor of float8_e4m3fn. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        self._infos = {name: self._describe(name) for name in self._scale_names}
        quantised_parts = {*self._scale_names, *self._scale_names.values()}
        self._unquantised_names = tuple(
            name for name in stored.names if name not in quantised_parts and not name.endswith(_INPUT_SCALE_SUFFIXES)
        )

    def _weight(self, name: str) -> QuantizedWeight:
        codes = np.asarray(self._stored.array(name))
        scales = np.asarray(self._stored.array(self._scale_names[name]))
        scales = decode_e8m0(scales.view(np.uint8)) if scales.dtype.itemsize == 1 else scales.astype(np.float32)
        # The two codes of NaN have all bits of the magnitude set.
        if not np.isfinite(scales).all() or ((codes.view(np.uint8) & 0x7F) == 0x7F).any():
            raise CheckpointError(
                f"{self._model_name} has {name} with values that are not finite. Fetch the weights again."
            )
        rows = codes.shape[0]
        if not self._is_in_blocks(name):
            row_scales = np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (rows, 1)))
            return QuantizedWeight(FP8, codes, row_scales)
        n, k = self._block_shape(codes.shape, scales.shape)
        return QuantizedWeight(fp8_in_blocks(k), codes, np.repeat(scales, n, axis=0)[:rows])

    def _is_fp8(self, name: str) -> bool:
        return name.endswith(_WEIGHT) and self._stored.info(name).dtype_name == _E4M3

    def _scale_name(self, name: str, names: frozenset[str]) -> str:
        module = name.removesuffix(_WEIGHT)
        found = [f"{module}{suffix}" for suffix in _SCALE_SUFFIXES if f"{module}{suffix}" in names]
        if len(found) != 1:
            raise CheckpointError(
                f"{self._model_name} has {name} in float8_e4m3fn with {' and '.join(found) or 'no scales'}, where one "
                f"of {' and '.join(module + suffix for suffix in _SCALE_SUFFIXES)} is expected. Fetch the weights "
                "again."
            )
        return found[0]

    def _is_in_blocks(self, name: str) -> bool:
        """Whether each scale is that of a block: the scales are neither one number nor one for each row."""
        rows = self._stored.info(name).shape[0]
        return self._stored.info(self._scale_names[name]).shape not in ((), (1,), (1, 1), (rows,), (rows, 1))

    def _block_shape(self, shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, int]:
        """The shape (n, k) of blocks: that of the config, or equal parts of a row."""
        if self._block_size is not None or len(scales) != 2:
            return self._block_size or (1, 1)
        return 1, max(shape[1] // max(scales[1], 1), 1)

    def _describe(self, name: str) -> TensorInfo:
        """Describe a matrix; CheckpointError for scales of another shape or dtype than `config` says."""
        info, scales = self._stored.info(name), self._stored.info(self._scale_names[name])
        is_matrix = len(info.shape) == 2
        is_expected = is_matrix and scales.dtype_name in _SCALE_DTYPES
        format: WeightFormat = FP8
        if is_expected and self._is_in_blocks(name):
            n, k = self._block_shape(info.shape, scales.shape)
            is_expected = scales.shape == (-(-info.shape[0] // n), -(-info.shape[1] // k))
            format = fp8_in_blocks(k)
        if not is_expected:
            raise CheckpointError(
                f"{self._model_name} has {name} {list(info.shape)} in float8_e4m3fn with scales of {scales.dtype_name} "
                f"{list(scales.shape)}, which quantization_config does not describe. Check that it belongs to the "
                "weights."
            )
        return TensorInfo("fp8", info.shape, 0, info.num_bytes + scales.num_bytes, format)


_PACKED, _SCALE = ".weight_packed", ".weight_scale"
_GLOBAL_SCALE, _SECOND_SCALE = ".weight_global_scale", ".weight_scale_2"
_NVFP4_GROUP = 16
_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16


def has_fp4(stored: StoredTensors) -> bool:
    """Whether a checkpoint has matrices of 4-bit floating-point elements."""
    return any(_fp4_module(stored, name) is not None for name in stored.names)


def _fp4_module(stored: StoredTensors, name: str) -> str | None:
    """The module whose packed 4-bit elements a tensor has; None for other tensors."""
    for suffix in (_PACKED, _WEIGHT):
        if name.endswith(suffix) and stored.info(name).dtype_name == "U8":
            return name.removesuffix(suffix)
    return None


def unpack_nibbles(packed: Array) -> Array:
    """Unpack bytes [N, bytes] to codes of 4 bits [N, 2 · bytes]: first the low bits of a byte, then the high ones."""
    codes = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, ::2])
    np.right_shift(packed, 4, out=codes[:, 1::2])
    return codes


def _nvfp4_values(codes: Array, scales: Array) -> Iterator[tuple[slice, Array]]:
    """Yield slices of the rows of an NVFP4 matrix, and the float32 values of these rows."""
    for chunk in row_chunks(codes.shape):
        with np.errstate(all="ignore"):  # the callers refuse values that are not finite
            values = E2M1[codes[chunk]] * np.repeat(scales[chunk], _NVFP4_GROUP, axis=1)
        yield chunk, values


class Fp4Checkpoint(QuantizedTensors):
    """A checkpoint whose matrices of 4-bit elements are QuantizedWeights `X.weight`, in mxfp4, or int8 for NVFP4;
    implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, model_name: str) -> None:
        """Check that elements and scales fit together; CheckpointError if not. `model_name` is for messages."""
        self._stored = stored
        self._model_name = model_name
        self._names = frozenset(stored.names)
        self._packed = {module: name for name in stored.names if (module := _fp4_module(stored, name)) is not None}
        self._infos = {f"{module}{_WEIGHT}": self._describe(module) for module in self._packed}
        suffixes = (_WEIGHT, _PACKED, _SCALE, _GLOBAL_SCALE, _SECOND_SCALE)
        part_names = {f"{module}{suffix}" for module in self._packed for suffix in suffixes}
        self._unquantised_names = tuple(name for name in stored.names if name not in part_names)
        num_nvfp4 = sum(info.weight_format == INT8 for info in self._infos.values())
        warn_of_requantised(model_name, num_nvfp4, len(self._infos), "are NVFP4, with a scale for each 16 values")

    def _weight(self, name: str) -> QuantizedWeight:
        codes, scales = self._codes_and_scales(name)
        try:
            if self._infos[name].weight_format == MXFP4:
                check_scales(scales)
                return QuantizedWeight(MXFP4, codes, scales)
            rows, columns = codes.shape
            weight = QuantizedWeight(
                INT8, np.empty((rows, columns), np.int8), np.empty((rows, INT8.num_blocks(columns)), np.float16)
            )
            for chunk, values in _nvfp4_values(codes, scales):
                quantised = INT8.quantize(values)
                weight.codes[chunk], weight.scales[chunk] = quantised.codes, quantised.scales
            return weight
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._model_name}: {name}: {error} Fetch the weights again.") from None

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        if self._infos[name].weight_format == MXFP4:
            return super()._values(name, dtype)
        codes, scales = self._codes_and_scales(name)
        dense = np.empty(codes.shape, dtype)
        for chunk, values in _nvfp4_values(codes, scales):
            dense[chunk] = values
        return dense

    def _codes_and_scales(self, name: str) -> tuple[Array, Array]:
        """The codes of a matrix, and the scales of its groups: bytes for MXFP4, float32 for NVFP4."""
        module = name.removesuffix(_WEIGHT)
        codes = unpack_nibbles(self._plain_array(self._packed[module]))
        scales = self._plain_array(f"{module}{_SCALE}")
        if self._infos[name].weight_format == MXFP4:
            return codes, scales
        with np.errstate(all="ignore"):  # the callers refuse values that are not finite
            return codes, self._group_scales(module, scales)

    def _group_scales(self, module: str, scales: Array) -> Array:
        """The scales of groups of 16 values, with the global scale applied: float32 [N, K / 16]."""
        group_scales = scales.astype(np.float32)
        if f"{module}{_SECOND_SCALE}" in self._names:
            return group_scales * self._plain_array(f"{module}{_SECOND_SCALE}").astype(np.float32).reshape(1, 1)
        divisor = self._plain_array(f"{module}{_GLOBAL_SCALE}").astype(np.float32).reshape(1, 1)
        return group_scales / divisor

    def _describe(self, module: str) -> TensorInfo:
        """Describe a matrix; CheckpointError if its scales are neither those of NVFP4 nor of MXFP4."""
        packed = self._stored.info(self._packed[module])
        name = f"{module}{_SCALE}"
        scales = self._stored.info(name) if name in self._names else None
        if scales is not None and len(packed.shape) == 2 == len(scales.shape):
            rows, columns = packed.shape[0], 2 * packed.shape[1]
            num_bytes = packed.num_bytes + scales.num_bytes
            if scales.dtype_name == "U8" and scales.shape == (rows, columns // 32) and columns % 32 == 0:
                return TensorInfo("mxfp4", (rows, columns), 0, num_bytes, MXFP4)
            factors = [suffix for suffix in (_GLOBAL_SCALE, _SECOND_SCALE) if f"{module}{suffix}" in self._names]
            has_one_factor = len(factors) == 1 and self._stored.info(f"{module}{factors[0]}").shape in (
                (),
                (1,),
                (1, 1),
            )
            is_nvfp4 = scales.dtype_name == "F8_E4M3" and scales.shape == (rows, columns // _NVFP4_GROUP)
            if has_one_factor and is_nvfp4 and columns % _NVFP4_GROUP == 0:
                return TensorInfo("nvfp4", (rows, columns), 0, num_bytes, INT8)
        found = "no scales" if scales is None else f"scales of {scales.dtype_name} {list(scales.shape)}"
        raise CheckpointError(
            f"{self._model_name} has {self._packed[module]} of uint8 {list(packed.shape)} with {found}: this is "
            "neither NVFP4 nor MXFP4. Check that quantization_config belongs to the weights."
        )

    def _plain_array(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)


class Mxfp4Checkpoint(QuantizedTensors):
    """A checkpoint whose weights in mxfp4 are tensors `X`, described as [E, N, K] and read as QuantizedWeights
    [E · N, K]; implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, model_name: str) -> None:
        """Check that blocks and scales fit together; `model_name` is for messages.

        Raises:
            CheckpointError: there are no blocks, or blocks without scales of their shape.
        """
        self._stored = stored
        self._model_name = model_name
        self._infos = {
            name.removesuffix(_BLOCKS): self._describe(name.removesuffix(_BLOCKS))
            for name in stored.names
            if name.endswith(_BLOCKS)
        }
        if not self._infos:
            raise CheckpointError(
                f"{model_name} says that it is quantised by mxfp4, and has no tensor *{_BLOCKS}. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        part_names = {f"{name}{part}" for name in self._infos for part in (_BLOCKS, _SCALES)}
        self._unquantised_names = tuple(name for name in stored.names if name not in part_names)

    def _weight(self, name: str) -> QuantizedWeight:
        info = self._infos[name]
        rows, columns = prod(info.shape[:-1]), info.shape[-1]
        packed, scales = (np.asarray(self._stored.array(f"{name}{part}")) for part in (_BLOCKS, _SCALES))
        codes = unpack_nibbles(packed.reshape(rows, columns // 2))
        drop_mapped_pages(packed)
        try:
            check_scales(scales)
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._model_name}: {name}{_SCALES}: {error} Fetch the weights again.") from None
        return QuantizedWeight(MXFP4, codes, scales.reshape(rows, -1))

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        return super()._values(name, dtype).reshape(self._infos[name].shape)

    def _describe(self, name: str) -> TensorInfo:
        """Describe the experts `name`, [E, N, K]; CheckpointError if blocks and scales do not fit together."""
        blocks = self._stored.info(f"{name}{_BLOCKS}")
        scales = self._stored.info(f"{name}{_SCALES}")
        are_bytes = blocks.dtype_name == scales.dtype_name == "U8"
        if not are_bytes or len(blocks.shape) < 3 or blocks.shape != (*scales.shape, _BLOCK_BYTES):
            raise CheckpointError(
                f"{self._model_name} has {name}{_BLOCKS} of {blocks.dtype_name} {list(blocks.shape)} with {_SCALES} of "
                f"{scales.dtype_name} {list(scales.shape)}: mxfp4 has bytes, {_BLOCK_BYTES} of codes for each scale."
            )
        *rows, num_blocks = scales.shape
        return TensorInfo("mxfp4", (*rows, num_blocks * MXFP4.block), 0, blocks.num_bytes + scales.num_bytes, MXFP4)
