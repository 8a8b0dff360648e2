"""Checkpoints of compressed-tensors (llm-compressor), ModelOpt and torchao, with a reader for their integer matrices.

A matrix `X.weight` [N, K] is stored in one of these ways; `config_groups` may have several of them for one model:

    pack-quantized   X.weight_packed int32 [N, ⌈K · bits / 32⌉], codes from 0 packed along K without gaps, lowest bits
                     first; files written before 2026 have ⌊32 / bits⌋ codes in a word. X.weight_shape has N and K
    int-quantized    X.weight int8 [N, K], codes of either sign
    float-quantized, mxfp8-quantized               `checkpoint.float_formats`
    nvfp4-pack-quantized, mxfp4-pack-quantized     `checkpoint.float_formats`

X.weight_scale is [N, groups], [N] or one number. X.weight_zero_point has the dtype of the codes; without it, the middle
code stands for 0. X.weight_g_idx [K] is the group of each column, if groups are not consecutive columns. Scales of
activations and of the KV cache are not used: kernels compute their own.

ModelOpt has FP8 and NVFP4 in layouts like these, by `quant_algo` of its config. torchao has FP8 and integers of 8 bits
under other names: X._weight_qdata, X._weight_scale and X._weight_zero_point; for 4 bits see
`checkpoint.tensor_core_int4`. What it packs for one kernel otherwise is refused. Sparse weights of compressed-tensors
are made dense first (`checkpoint.sparse_bitmask`).

Source: the formats' own descriptions and their packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.float_formats import Fp4Checkpoint, Fp8Checkpoint, has_fp4, has_fp8, read_block_size
from aethermind.checkpoint.quantized_tensors import (
    INT8,
    QuantizedTensors,
    dense_groups,
    group_format,
    group_weight,
    unpack_codes,
    warn_of_requantised,
    without_activation_scales,
)
from aethermind.checkpoint.remapped import AdaptedTensors, TensorSlice
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.checkpoint.sparse_bitmask import SPARSE_FORMATS, SparseCheckpoint
from aethermind.checkpoint.tensor_core_int4 import Int4Checkpoint, int4_modules
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = ["IntegerCheckpoint", "open_compressed_tensors", "open_modelopt", "open_torchao"]

Array = npt.NDArray[Any]

_WEIGHT = ".weight"
_PACKED, _SHAPE, _SCALE = ".weight_packed", ".weight_shape", ".weight_scale"
_ZERO_POINT, _G_IDX = ".weight_zero_point", ".weight_g_idx"
_SCALE_DTYPES = ("F16", "BF16", "F32")
_PACKED_SPARSE = "marlin-24"
_WORD_BITS = 32
_QDATA = "._weight_qdata"
_TORCHAO_PARTS = {_QDATA: ".weight", "._weight_scale": ".weight_scale", "._weight_zero_point": ".weight_zero_point"}
_PRE_SCALE = "._weight_act_pre_scale"
_TORCHAO_TYPES = ("F8_E4M3", "I8")
_MODELOPT_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION")


def open_compressed_tensors(stored: StoredTensors, config: Mapping[str, Any], model_name: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `model_name` is for messages.

    Raises:
        ConfigError: weights are packed for one kernel, transformed at run time, or described in an unknown way.
        CheckpointError: there are no quantised matrices, or parts of one are missing or do not fit.
    """
    is_sparse = _check_config(config, model_name)
    plain = without_activation_scales(stored)
    view = SparseCheckpoint(plain, model_name) if is_sparse else plain
    if has_fp8(view):
        view = Fp8Checkpoint(view, read_block_size(config, model_name), model_name)
    if has_fp4(view):
        view = Fp4Checkpoint(view, model_name)
    if any(name.endswith(_PACKED) or _has_int8(view, name) for name in view.names):
        view = IntegerCheckpoint(view, _bit_widths(config, model_name), model_name)
    if view is plain:
        raise CheckpointError(
            f"{model_name} says that it is quantised by compressed-tensors, and has no quantised matrix. Take "
            "quantization_config out of config.json if its weights are not quantised."
        )
    return view


def open_modelopt(stored: StoredTensors, config: Mapping[str, Any], model_name: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `model_name` is for messages.

    ConfigError for another algorithm, CheckpointError if there are no quantised matrices or their parts do not fit.
    """
    algorithm = config.get("quant_algo")
    if algorithm not in _MODELOPT_ALGORITHMS:
        raise ConfigError(
            f"{model_name!r} is quantised by ModelOpt to {algorithm!r:.40}; {', '.join(_MODELOPT_ALGORITHMS)} can be "
            "read. Use the unquantised model and pass a format as quantization."
        )
    view = without_activation_scales(stored)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, model_name)
    elif not has_fp4(view):
        raise CheckpointError(
            f"{model_name} says that it is quantised by ModelOpt, and has no quantised matrix. Take "
            "quantization_config out of config.json if its weights are not quantised."
        )
    return Fp4Checkpoint(view, model_name) if has_fp4(view) else view


def open_torchao(stored: StoredTensors, model_name: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `model_name` is for messages.

    ConfigError for tensors in a layout that is not read, CheckpointError if there are no quantised matrices, or parts
    of one do not fit.
    """
    names = stored.names
    modules = [name.removesuffix(_QDATA) for name in names if name.endswith(_QDATA)]
    if not modules:
        raise CheckpointError(
            f"{model_name} says that it is quantised by torchao, and has no tensor *{_QDATA}. Take the model in "
            "safetensors that torchao 0.14 or later wrote; take quantization_config out of config.json if its weights "
            "are not quantised."
        )
    of_4_bits = int4_modules(stored)
    for module in modules:
        if f"{module}{_PRE_SCALE}" in names:
            raise ConfigError(
                f"{model_name!r} has {module} with a scale of its activations ({_PRE_SCALE[1:]}, torchao), which is "
                "not supported. Take the model quantised without it, or unquantised with a format as quantization."
            )
        if module in of_4_bits:
            continue
        data, scales = (stored.info(f"{module}{part}") for part in (_QDATA, "._weight_scale"))
        is_packed = len(data.shape) == 2 == len(scales.shape) and scales.shape[0] not in (1, data.shape[0])
        is_in_blocks = data.dtype_name == "F8_E4M3"
        if data.dtype_name not in _TORCHAO_TYPES or (is_packed and not is_in_blocks):
            raise ConfigError(
                f"{model_name!r} has {module}{_QDATA} of {data.dtype_name} {list(data.shape)} with scales "
                f"{list(scales.shape)}, which torchao packed for one of its kernels. Take the model quantised to FP8 "
                "or int8, or unquantised with a format as quantization."
            )
    of_module = {name: name.partition("._weight_")[0] for name in names if "._weight_" in name}
    as_stored = [name for name in names if of_module.get(name) in (None, *of_4_bits)]
    parts = {name: end for name in names for end in _TORCHAO_PARTS if name.endswith(end) and name not in as_stored}
    renamed = {name.removesuffix(end) + _TORCHAO_PARTS[end]: TensorSlice(name) for name, end in parts.items()}
    slices = {**{name: TensorSlice(name) for name in as_stored}, **renamed}
    view: StoredTensors = AdaptedTensors(stored, slices, only_parts=True)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, model_name)
    if any(_has_int8(view, name) for name in view.names):
        view = IntegerCheckpoint(view, (), model_name)
    return Int4Checkpoint(view, of_4_bits, model_name) if of_4_bits else view


def _has_int8(stored: StoredTensors, name: str) -> bool:
    """Whether a tensor is a matrix of int8 codes."""
    return name.endswith(_WEIGHT) and stored.info(name).dtype_name == "I8"


def _check_config(config: Mapping[str, Any], model_name: str) -> bool:
    """Return whether weights are stored sparse; ConfigError for what is not read."""
    sparsity = config.get("sparsity_config")
    of_sparsity = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    formats = (config.get("format"), of_sparsity)
    if _PACKED_SPARSE in formats:
        raise ConfigError(
            f"{model_name!r} stores sparse weights packed for one kernel ({_PACKED_SPARSE!r}, compressed-tensors), "
            f"which cannot be read. Take the model in the format {SPARSE_FORMATS[0]}, without sparsity, or as .gguf."
        )
    transforms = config.get("transform_config")
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        raise ConfigError(
            f"{model_name!r} rotates activations while it runs (transform_config, compressed-tensors), which is not "
            "supported. Take the model quantised without transforms, or as .gguf."
        )
    return any(format in SPARSE_FORMATS for format in formats)


def _bit_widths(config: Mapping[str, Any], model_name: str) -> tuple[int, ...]:
    """The bits of integer weights that `config_groups` names, without repetitions."""
    groups = config.get("config_groups") or {}
    found = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("type", "int") == "int":
            bits = weights.get("num_bits", 8)
            if type(bits) is not int or not 1 <= bits <= 8:
                raise ConfigError(
                    f"{model_name!r} has weights of {bits!r:.20} bits (compressed-tensors); 1 to 8 are read."
                )
            found.append(bits)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """How one matrix is stored.

    Attributes:
        shape: (N, K).
        bits: bits of a code.
        per_word: codes in a word of 32 bits, in files with gaps; 0 if codes are packed without gaps.
        num_groups: groups of a row, each with a scale.
        is_packed: whether codes are packed into words; else they are int8.
        has_zero_points: whether zero points are stored and differ from `middle`.
        has_g_idx: whether columns are in another order than that of their groups.
    """

    shape: tuple[int, int]
    bits: int
    per_word: int
    num_groups: int
    is_packed: bool
    has_zero_points: bool
    has_g_idx: bool

    @property
    def middle(self) -> int:
        """The code that stands for 0 without zero points."""
        return 1 << (self.bits - 1)

    @property
    def group_size(self) -> int:
        """The number of columns of a group, 0 for all."""
        return 0 if self.num_groups == 1 else self.shape[1] // self.num_groups

    def unpacked(self, words: Array, count: int) -> Array:
        """Unpack `count` codes of each row of words: uint8 [rows, count]."""
        if self.per_word and _WORD_BITS % self.bits:  # the last bits of a word are not used
            words = np.ascontiguousarray(words).view(np.uint32)
            shifts = np.arange(self.per_word, dtype=np.uint32) * np.uint32(self.bits)
            codes: Array = (words[:, :, None] >> shifts & np.uint32((1 << self.bits) - 1)).astype(np.uint8)
            return codes.reshape(len(words), -1)[:, :count]
        return unpack_codes(words, self.bits, count)

    def num_words(self, count: int) -> int:
        """The number of words that hold `count` codes."""
        return -(-count // self.per_word) if self.per_word else -(-count * self.bits // _WORD_BITS)

    @property
    def format(self) -> WeightFormat | None:
        """The weight format that has such groups; None if there is none, and the matrix is requantised."""
        return None if self.has_g_idx else group_format(self.bits, self.group_size, self.has_zero_points)


class IntegerCheckpoint(QuantizedTensors):
    """A checkpoint whose matrices of integer codes are QuantizedWeights `X.weight`; implements `StoredTensors`.

    Matrices with groups that no weight format has (a size that is not a multiple of 32, or columns in another order)
    are requantised as int8. Immutable.
    """

    def __init__(self, stored: StoredTensors, bit_widths: tuple[int, ...], model_name: str) -> None:
        """Check that the parts of each matrix fit together; CheckpointError if not. `bit_widths` are the bits of a code
        that the config names; the shape of a matrix tells which of them it has.
        """
        self._stored = stored
        self._model_name = model_name
        self._bit_widths = bit_widths
        self._names = frozenset(stored.names)
        modules = [name.removesuffix(_PACKED) for name in stored.names if name.endswith(_PACKED)]
        modules += [name.removesuffix(_WEIGHT) for name in stored.names if _has_int8(stored, name)]
        self._matrices = {module: self._describe(module) for module in modules}
        suffixes = (_PACKED, _SHAPE, _SCALE, _ZERO_POINT, _G_IDX, _WEIGHT)
        part_names = {f"{module}{suffix}" for module in modules for suffix in suffixes}
        self._unquantised_names = [name for name in stored.names if name not in part_names]
        self._infos = {
            f"{module}{_WEIGHT}": TensorInfo(
                f"int{matrix.bits}",
                matrix.shape,
                0,
                sum(
                    stored.info(f"{module}{suffix}").num_bytes
                    for suffix in suffixes
                    if f"{module}{suffix}" in self._names
                ),
                matrix.format or INT8,
            )
            for module, matrix in self._matrices.items()
        }
        regrouped = [matrix for matrix in self._matrices.values() if matrix.format is None]
        warn_of_requantised(model_name, len(regrouped), len(modules), "have groups in an order or size of their own")

    def _weight(self, name: str) -> QuantizedWeight:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        if matrix.format is None:
            try:
                return INT8.quantize(self._values(name, np.float32))
            except InvalidArgumentError as error:
                raise CheckpointError(f"{self._model_name}: {name}: {error} Fetch the weights again.") from None
        codes, stored, zeros = self._codes_scales_zeros(module)
        with np.errstate(over="ignore"):
            scales = stored.astype(np.float16)
        if not np.isfinite(scales).all():
            raise CheckpointError(
                f"{self._model_name} has {module}{_SCALE} that are not finite in float16. Fetch the weights again."
            )
        return group_weight(matrix.format, codes, scales, zeros, matrix.middle)

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        return dense_groups(
            *self._codes_scales_zeros(module), matrix.middle, self._column_groups(module, matrix), dtype
        )

    def _codes_scales_zeros(self, module: str) -> tuple[Array, Array, Array | None]:
        """Codes from 0 [N, K], scales as they are stored [N, groups], and zero points from 0 [N, groups] or None."""
        matrix = self._matrices[module]
        rows, columns = matrix.shape
        if matrix.is_packed:
            codes = matrix.unpacked(self._part(module, _PACKED), columns)
        else:
            codes = self._unsigned_codes(module, self._part(module, _WEIGHT), matrix)
        scales = self._part(module, _SCALE).reshape(-1, matrix.num_groups)
        scales = np.ascontiguousarray(np.broadcast_to(scales, (rows, matrix.num_groups)))
        return codes, scales, self._zeros(module, matrix) if matrix.has_zero_points else None

    def _unsigned_codes(self, module: str, stored: Array, matrix: _Matrix) -> Array:
        """Return signed codes as codes from 0; CheckpointError for a code outside the range of its bits."""
        codes = stored.view(np.uint8) + np.uint8(matrix.middle)
        if codes.size and int(codes.max()) >= 1 << matrix.bits:
            raise CheckpointError(
                f"{self._model_name} has {module} with codes beyond {matrix.bits} bits. Check that quantization_config "
                "belongs to the weights."
            )
        return codes

    def _zeros(self, module: str, matrix: _Matrix) -> Array:
        """Return zero points as codes from 0, uint8 [N, groups]. Packed zero points are packed along N."""
        stored = self._part(module, _ZERO_POINT)
        rows, groups = matrix.shape[0], matrix.num_groups
        if stored.dtype == np.int32:
            return np.ascontiguousarray(matrix.unpacked(stored.T, rows).T)
        zeros = self._unsigned_codes(module, np.ascontiguousarray(stored), matrix).reshape(-1, groups)
        return np.ascontiguousarray(np.broadcast_to(zeros, (rows, groups)))

    def _column_groups(self, module: str, matrix: _Matrix) -> Array:
        """The group of each column, [K]; CheckpointError for a group that does not exist."""
        columns = matrix.shape[1]
        if not matrix.has_g_idx:
            return np.arange(columns) // (matrix.group_size or max(columns, 1))
        groups = self._part(module, _G_IDX)
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < matrix.num_groups:
            raise CheckpointError(
                f"{self._model_name} has {module}{_G_IDX} beyond its {matrix.num_groups} groups. Fetch the weights "
                "again."
            )
        return groups

    def _describe(self, module: str) -> _Matrix:
        """Describe a matrix; CheckpointError for parts that are missing or do not fit."""
        is_packed = f"{module}{_PACKED}" in self._names
        codes = self._stored.info(f"{module}{_PACKED if is_packed else _WEIGHT}")
        if f"{module}{_SCALE}" not in self._names:
            raise CheckpointError(f"{self._model_name} has {module} without {_SCALE[1:]}. Fetch the weights again.")
        if len(codes.shape) != 2 or (is_packed and codes.dtype_name != "I32"):
            self._fail(module, _PACKED if is_packed else _WEIGHT, "a matrix of int32 or int8")
        rows, columns = self._shape(module, codes) if is_packed else codes.shape
        bits, per_word = (
            self._infer_bits(module, codes, columns) if is_packed else (max(self._bit_widths, default=8), 0)
        )
        scales = self._stored.info(f"{module}{_SCALE}")
        groups = scales.shape[1] if len(scales.shape) == 2 else 1
        has_scale_shape = scales.shape in ((), (1,), (rows,), (1, 1), (rows, groups))
        if scales.dtype_name not in _SCALE_DTYPES or not has_scale_shape or groups < 1 or columns % groups:
            self._fail(module, _SCALE, f"floating-point numbers [{rows}, groups]")
        has_zero_points, has_g_idx = f"{module}{_ZERO_POINT}" in self._names, f"{module}{_G_IDX}" in self._names
        if has_g_idx:
            info = self._stored.info(f"{module}{_G_IDX}")
            if info.dtype_name not in ("I32", "I64") or info.shape != (columns,):
                self._fail(module, _G_IDX, f"a group for each of {columns} columns")
            g_idx = self._part(module, _G_IDX)
            default_order = np.arange(columns) // (columns // groups)
            has_g_idx = bool((g_idx > 0).any()) and not np.array_equal(g_idx, default_order)  # all -1 or 0: not used
        matrix = _Matrix((rows, columns), bits, per_word, groups, is_packed, has_zero_points, has_g_idx)
        if has_zero_points:
            info = self._stored.info(f"{module}{_ZERO_POINT}")
            is_expected = info.dtype_name == "I8" and info.shape in ((), (1,), (1, 1), (rows,), (rows, groups))
            if not is_expected and (info.dtype_name, info.shape) != ("I32", (matrix.num_words(rows), groups)):
                self._fail(module, _ZERO_POINT, f"zero points of {rows} rows and {groups} groups")
            if (self._zeros(module, matrix) == matrix.middle).all():
                return replace(matrix, has_zero_points=False)
        return matrix

    def _shape(self, module: str, codes: TensorInfo) -> tuple[int, int]:
        """The shape (N, K) of a packed matrix, from X.weight_shape; CheckpointError if that does not fit the codes."""
        name = f"{module}{_SHAPE}"
        values = self._part(module, _SHAPE).ravel().tolist() if name in self._names else []
        if len(values) != 2 or values[0] != codes.shape[0] or not 0 < values[1] <= codes.shape[1] * _WORD_BITS:
            raise CheckpointError(
                f"{self._model_name} has {module}{_PACKED} {list(codes.shape)} with {_SHAPE[1:]} {values!r:.80}, which "
                "does not belong to it. Fetch the weights again."
            )
        return codes.shape[0], int(values[1])

    def _infer_bits(self, module: str, codes: TensorInfo, columns: int) -> tuple[int, int]:
        """Return bits of a code, and codes of a word in files with gaps (else 0), inferred from the number of words."""
        words = codes.shape[1]
        for bits in (*self._bit_widths, 4, 8, 2, 3, 5, 6, 7, 1):
            if -(-columns * bits // _WORD_BITS) == words:
                return bits, 0
            if -(-columns // (_WORD_BITS // bits)) == words:
                return bits, _WORD_BITS // bits
        self._fail(module, _PACKED, f"words for {columns} codes of 1 to 8 bits")

    def _part(self, module: str, suffix: str) -> Array:
        array = self._stored.array(f"{module}{suffix}")
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)

    def _fail(self, module: str, suffix: str, expected: str) -> NoReturn:
        info = self._stored.info(f"{module}{suffix}")
        raise CheckpointError(
            f"{self._model_name} has {module}{suffix} of {info.dtype_name} {list(info.shape)}, where {expected} are "
            "expected (compressed-tensors). Check that quantization_config belongs to the weights."
        )
