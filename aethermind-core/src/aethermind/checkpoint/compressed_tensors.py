"""Checkpoints of compressed-tensors (llm-compressor), with a reader for its integers, of ModelOpt and of torchao.

A matrix `X.weight` [N, K] is stored in one of these ways; `config_groups` may have several of them for one model:

    pack-quantized   X.weight_packed int32 [N, ⌈K · bits / 32⌉], codes from 0 packed along K without gaps, lowest bits
                     first; files of before 2026 have ⌊32 / bits⌋ codes in a word. X.weight_shape has N and K
    int-quantized    X.weight int8 [N, K], codes of either sign
    float-quantized, mxfp8-quantized               `checkpoint.fp8`
    nvfp4-pack-quantized, mxfp4-pack-quantized     `checkpoint.fp4`

X.weight_scale is [N, groups], [N] or one number. Without X.weight_zero_point, of the type of the codes, the middle code
is zero. X.weight_g_idx [K] is the group of each column, where it is not that of the order. Scales of activations and of
the KV cache are not used: kernels compute their own.

ModelOpt has FP8 and NVFP4 in layouts like these, by `quant_algo` of its config. torchao has FP8 and integers of 8 bits
under other names: X._weight_qdata, X._weight_scale and X._weight_zero_point; what it packs for one kernel is refused.

Source: the formats' own descriptions and their packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.fp4 import Fp4Checkpoint, has_fp4
from aethermind.checkpoint.fp8 import Fp8Checkpoint, has_fp8, read_block_size
from aethermind.checkpoint.integer_groups import INT8, dense_groups, group_format, group_weight, unpack_codes
from aethermind.checkpoint.quantized_tensors import QuantizedTensors, warn_of_requantised, without_activation_scales
from aethermind.checkpoint.remapped import AdaptedTensors, TensorSlice
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = ["IntegerCheckpoint", "open_compressed_tensors", "open_modelopt", "open_torchao"]

Array = npt.NDArray[Any]

_WEIGHT = ".weight"
_PACKED, _SHAPE, _SCALE = ".weight_packed", ".weight_shape", ".weight_scale"
_ZERO_POINT, _GROUPS = ".weight_zero_point", ".weight_g_idx"
_FLOATS = ("F16", "BF16", "F32")
_SPARSE = ("sparse-bitmask", "sparse-24-bitmask", "marlin-24")
_WORD = 32
_DATA = "._weight_qdata"
_TORCHAO_PARTS = {_DATA: ".weight", "._weight_scale": ".weight_scale", "._weight_zero_point": ".weight_zero_point"}
_PRE_SCALE = "._weight_act_pre_scale"
_TORCHAO_TYPES = ("F8_E4M3", "I8")
_MODELOPT_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION")


def open_compressed_tensors(stored: StoredTensors, described: Mapping[str, Any], where: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `where` names the model in messages.

    Raises:
        ConfigError: weights are sparse, transformed at run time, or described in an unknown way.
        CheckpointError: there are no quantised matrices, or parts of one are missing or do not fit.
    """
    _check_config(described, where)
    view = plain = without_activation_scales(stored)
    if has_fp8(view):
        view = Fp8Checkpoint(view, read_block_size(described, where), where)
    if has_fp4(view):
        view = Fp4Checkpoint(view, where)
    if any(name.endswith(_PACKED) or _has_int8(view, name) for name in view.names):
        view = IntegerCheckpoint(view, _numbers_of_bits(described, where), where)
    if view is plain:
        raise CheckpointError(
            f"{where} says that it is quantised by compressed-tensors, and has no quantised matrix. Take "
            "quantization_config out of config.json if its weights are not quantised."
        )
    return view


def open_modelopt(stored: StoredTensors, described: Mapping[str, Any], where: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `where` names the model in messages.

    ConfigError for another algorithm, CheckpointError if there are no quantised matrices or their parts do not fit.
    """
    algorithm = described.get("quant_algo")
    if algorithm not in _MODELOPT_ALGORITHMS:
        raise ConfigError(
            f"{where!r} is quantised by ModelOpt to {algorithm!r:.40}; {', '.join(_MODELOPT_ALGORITHMS)} can be read. "
            "Use the unquantised model and pass a format as quantization."
        )
    view = without_activation_scales(stored)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, where)
    elif not has_fp4(view):
        raise CheckpointError(
            f"{where} says that it is quantised by ModelOpt, and has no quantised matrix. Take quantization_config out "
            "of config.json if its weights are not quantised."
        )
    return Fp4Checkpoint(view, where) if has_fp4(view) else view


def open_torchao(stored: StoredTensors, where: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `where` names the model in messages.

    ConfigError for a class of tensors that is not read, CheckpointError if there are no quantised matrices, or parts
    of one do not fit.
    """
    names = stored.names
    modules = [name.removesuffix(_DATA) for name in names if name.endswith(_DATA)]
    if not modules:
        raise CheckpointError(
            f"{where} says that it is quantised by torchao, and has no tensor *{_DATA}. Take the model in safetensors "
            "that torchao 0.14 or later wrote; take quantization_config out of config.json if its weights are not "
            "quantised."
        )
    for module in modules:
        data, scales = (stored.info(f"{module}{part}") for part in (_DATA, "._weight_scale"))
        is_packed = len(data.shape) == 2 == len(scales.shape) and scales.shape[0] not in (1, data.shape[0])
        is_in_blocks = data.dtype_name == "F8_E4M3"
        if (
            data.dtype_name not in _TORCHAO_TYPES
            or (is_packed and not is_in_blocks)
            or f"{module}{_PRE_SCALE}" in names
        ):
            raise ConfigError(
                f"{where!r} has {module}{_DATA} of {data.dtype_name} {list(data.shape)} with scales "
                f"{list(scales.shape)}, which torchao packed for one of its kernels. Take the model quantised to FP8 "
                "or int8, or unquantised with a format as quantization."
            )
    parts = {name: end for name in names for end in _TORCHAO_PARTS if name.endswith(end)}
    renamed = {name.removesuffix(end) + _TORCHAO_PARTS[end]: TensorSlice(name) for name, end in parts.items()}
    others = {name: TensorSlice(name) for name in names if "._weight_" not in name}
    view: StoredTensors = AdaptedTensors(stored, {**others, **renamed}, only_parts=True)
    is_mixed = any(stored.info(f"{module}{_DATA}").dtype_name == "I8" for module in modules)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, where)
    return IntegerCheckpoint(view, (), where) if is_mixed else view


def _has_int8(stored: StoredTensors, name: str) -> bool:
    return name.endswith(_WEIGHT) and stored.info(name).dtype_name == "I8"


def _check_config(described: Mapping[str, Any], where: str) -> None:
    sparsity = described.get("sparsity_config")
    of_sparsity = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    for format in (described.get("format"), of_sparsity):
        if format in _SPARSE:
            raise ConfigError(
                f"{where!r} stores sparse weights ({format!r}, compressed-tensors), which cannot be read. Take the "
                "model without sparsity, or as .gguf."
            )
    transforms = described.get("transform_config")
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        raise ConfigError(
            f"{where!r} rotates activations while it runs (transform_config, compressed-tensors), which is not "
            "supported. Take the model quantised without transforms, or as .gguf."
        )


def _numbers_of_bits(described: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The bits of integer weights in the groups of the config, in their order."""
    groups = described.get("config_groups") or {}
    found = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("type", "int") == "int":
            bits = weights.get("num_bits", 8)
            if type(bits) is not int or not 1 <= bits <= 8:
                raise ConfigError(f"{where!r} has weights of {bits!r:.20} bits (compressed-tensors); 1 to 8 are read.")
            found.append(bits)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix by its parts: shape, bits of a code, codes in a word, 0 for codes without gaps, and groups of a row."""

    shape: tuple[int, int]
    bits: int
    per_word: int
    num_groups: int
    is_packed: bool
    has_zeros: bool
    has_order: bool

    @property
    def middle(self) -> int:
        """The code of zero."""
        return 1 << (self.bits - 1)

    @property
    def group_size(self) -> int:
        """The number of columns of a group, 0 for all."""
        return 0 if self.num_groups == 1 else self.shape[1] // self.num_groups

    def unpacked(self, words: Array, count: int) -> Array:
        """Unpack `count` codes of each row of words."""
        if self.per_word and _WORD % self.bits:  # the rest of a word is not used
            words = np.ascontiguousarray(words).view(np.uint32)
            shifts = np.arange(self.per_word, dtype=np.uint32) * np.uint32(self.bits)
            codes: Array = (words[:, :, None] >> shifts & np.uint32((1 << self.bits) - 1)).astype(np.uint8)
            return codes.reshape(len(words), -1)[:, :count]
        return unpack_codes(words, self.bits, count)

    def num_words(self, count: int) -> int:
        """The number of words of so many codes."""
        return -(-count // self.per_word) if self.per_word else -(-count * self.bits // _WORD)

    @property
    def format(self) -> WeightFormat | None:
        """The weight format that holds its groups, None if there is none."""
        return None if self.has_order else group_format(self.bits, self.group_size, self.has_zeros)


class IntegerCheckpoint(QuantizedTensors):
    """A checkpoint whose matrices of integer codes are QuantizedWeights `X.weight`; implements `StoredTensors`.

    Matrices with groups that no weight format has (a size that is not a multiple of 32, or columns in another order)
    are requantised as int8. Immutable.
    """

    def __init__(self, stored: StoredTensors, numbers_of_bits: tuple[int, ...], where: str) -> None:
        """Check that the parts of each matrix fit together; CheckpointError if not. `numbers_of_bits` are those of the
        config, of which shapes tell the right one.
        """
        self._stored = stored
        self._where = where
        self._bits = numbers_of_bits
        self._names = frozenset(stored.names)
        modules = [name.removesuffix(_PACKED) for name in stored.names if name.endswith(_PACKED)]
        modules += [name.removesuffix(_WEIGHT) for name in stored.names if _has_int8(stored, name)]
        self._matrices = {module: self._matrix(module) for module in modules}
        ends = (_PACKED, _SHAPE, _SCALE, _ZERO_POINT, _GROUPS, _WEIGHT)
        parts = {f"{module}{end}" for module in modules for end in ends}
        self._others = [name for name in stored.names if name not in parts]
        self._infos = {
            f"{module}{_WEIGHT}": TensorInfo(
                f"int{matrix.bits}",
                matrix.shape,
                0,
                sum(stored.info(f"{module}{end}").num_bytes for end in ends if f"{module}{end}" in self._names),
                matrix.format or INT8,
            )
            for module, matrix in self._matrices.items()
        }
        regrouped = [matrix for matrix in self._matrices.values() if matrix.format is None]
        warn_of_requantised(where, len(regrouped), len(modules), "have groups in an order or size of their own")

    def _weight(self, name: str) -> QuantizedWeight:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        if matrix.format is None:
            try:
                return INT8.quantize(self._values(name, np.float32))
            except InvalidArgumentError as error:
                raise CheckpointError(f"{self._where}: {name}: {error} Fetch the weights again.") from None
        codes, stored, zeros = self._parts(module)
        with np.errstate(over="ignore"):
            scales = stored.astype(np.float16)
        if not np.isfinite(scales).all():
            raise CheckpointError(
                f"{self._where} has {module}{_SCALE} that are not finite in float16. Fetch the weights again."
            )
        return group_weight(matrix.format, codes, scales, zeros, matrix.middle)

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        return dense_groups(*self._parts(module), matrix.middle, self._groups(module, matrix), dtype)

    def _parts(self, module: str) -> tuple[Array, Array, Array | None]:
        """Codes from 0 [N, K], scales as they are stored [N, groups], and zero points from 0 [N, groups] or None."""
        matrix = self._matrices[module]
        rows, columns = matrix.shape
        if matrix.is_packed:
            codes = matrix.unpacked(self._part(module, _PACKED), columns)
        else:
            codes = self._from_zero(module, self._part(module, _WEIGHT), matrix)
        scales = self._part(module, _SCALE).reshape(-1, matrix.num_groups)
        scales = np.ascontiguousarray(np.broadcast_to(scales, (rows, matrix.num_groups)))
        return codes, scales, self._zeros(module, matrix) if matrix.has_zeros else None

    def _from_zero(self, module: str, stored: Array, matrix: _Matrix) -> Array:
        """Return codes of either sign as codes from 0; CheckpointError for one that is beyond its bits."""
        codes = stored.view(np.uint8) + np.uint8(matrix.middle)
        if codes.size and int(codes.max()) >= 1 << matrix.bits:
            raise CheckpointError(
                f"{self._where} has {module} with codes beyond {matrix.bits} bits. Check that quantization_config "
                "belongs to the weights."
            )
        return codes

    def _zeros(self, module: str, matrix: _Matrix) -> Array:
        """Return zero points from 0, uint8 [N, groups]; packed ones are packed along N."""
        stored = self._part(module, _ZERO_POINT)
        rows, groups = matrix.shape[0], matrix.num_groups
        if stored.dtype == np.int32:
            return np.ascontiguousarray(matrix.unpacked(stored.T, rows).T)
        zeros = self._from_zero(module, np.ascontiguousarray(stored), matrix).reshape(-1, groups)
        return np.ascontiguousarray(np.broadcast_to(zeros, (rows, groups)))

    def _groups(self, module: str, matrix: _Matrix) -> Array:
        """The group of each column; CheckpointError for one that does not exist."""
        columns = matrix.shape[1]
        if not matrix.has_order:
            return np.arange(columns) // (matrix.group_size or max(columns, 1))
        groups = self._part(module, _GROUPS)
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < matrix.num_groups:
            raise CheckpointError(
                f"{self._where} has {module}{_GROUPS} beyond its {matrix.num_groups} groups. Fetch the weights again."
            )
        return groups

    def _matrix(self, module: str) -> _Matrix:
        """Describe a matrix; CheckpointError for parts that are missing or do not fit."""
        is_packed = f"{module}{_PACKED}" in self._names
        codes = self._stored.info(f"{module}{_PACKED if is_packed else _WEIGHT}")
        if f"{module}{_SCALE}" not in self._names:
            raise CheckpointError(f"{self._where} has {module} without {_SCALE[1:]}. Fetch the weights again.")
        if len(codes.shape) != 2 or (is_packed and codes.dtype_name != "I32"):
            self._fail(module, _PACKED if is_packed else _WEIGHT, "a matrix of int32 or int8")
        rows, columns = self._shape(module, codes) if is_packed else codes.shape
        bits, per_word = self._width(module, codes, columns) if is_packed else (max(self._bits, default=8), 0)
        scales = self._stored.info(f"{module}{_SCALE}")
        groups = scales.shape[1] if len(scales.shape) == 2 else 1
        is_whole = scales.shape in ((), (1,), (rows,), (1, 1), (rows, groups))
        if scales.dtype_name not in _FLOATS or not is_whole or groups < 1 or columns % groups:
            self._fail(module, _SCALE, f"floating-point numbers [{rows}, groups]")
        has_zeros, has_order = f"{module}{_ZERO_POINT}" in self._names, f"{module}{_GROUPS}" in self._names
        if has_order:
            info = self._stored.info(f"{module}{_GROUPS}")
            if info.dtype_name not in ("I32", "I64") or info.shape != (columns,):
                self._fail(module, _GROUPS, f"a group for each of {columns} columns")
            order = self._part(module, _GROUPS)
            in_order = np.arange(columns) // (columns // groups)
            has_order = bool((order > 0).any()) and not np.array_equal(order, in_order)  # -1 or 0: not written
        matrix = _Matrix((rows, columns), bits, per_word, groups, is_packed, has_zeros, has_order)
        if has_zeros:
            info = self._stored.info(f"{module}{_ZERO_POINT}")
            is_expected = info.dtype_name == "I8" and info.shape in ((), (1,), (1, 1), (rows,), (rows, groups))
            if not is_expected and (info.dtype_name, info.shape) != ("I32", (matrix.num_words(rows), groups)):
                self._fail(module, _ZERO_POINT, f"zero points of {rows} rows and {groups} groups")
            if (self._zeros(module, matrix) == matrix.middle).all():
                return replace(matrix, has_zeros=False)
        return matrix

    def _shape(self, module: str, codes: TensorInfo) -> tuple[int, int]:
        """The shape of a packed matrix, which is stored as a tensor; CheckpointError if it is no shape."""
        name = f"{module}{_SHAPE}"
        values = self._part(module, _SHAPE).ravel().tolist() if name in self._names else []
        if len(values) != 2 or values[0] != codes.shape[0] or not 0 < values[1] <= codes.shape[1] * _WORD:
            raise CheckpointError(
                f"{self._where} has {module}{_PACKED} {list(codes.shape)} with {_SHAPE[1:]} {values!r:.80}, which does "
                "not belong to it. Fetch the weights again."
            )
        return codes.shape[0], int(values[1])

    def _width(self, module: str, codes: TensorInfo, columns: int) -> tuple[int, int]:
        """The bits of a code, and the codes of a word in older files, from the number of words."""
        words = codes.shape[1]
        for bits in (*self._bits, 4, 8, 2, 3, 5, 6, 7, 1):
            if -(-columns * bits // _WORD) == words:
                return bits, 0
            if -(-columns // (_WORD // bits)) == words:
                return bits, _WORD // bits
        self._fail(module, _PACKED, f"words for {columns} codes of 1 to 8 bits")

    def _part(self, module: str, end: str) -> Array:
        array = self._stored.array(f"{module}{end}")
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)

    def _fail(self, module: str, end: str, wanted: str) -> NoReturn:
        info = self._stored.info(f"{module}{end}")
        raise CheckpointError(
            f"{self._where} has {module}{end} of {info.dtype_name} {list(info.shape)}, where {wanted} are expected "
            "(compressed-tensors). Check that quantization_config belongs to the weights."
        )
