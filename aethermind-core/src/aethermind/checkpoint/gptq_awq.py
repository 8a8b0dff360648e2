"""GPTQ, AWQ and auto-round checkpoints: a reader, and the layouts in which they pack a matrix [N, K].

The layout is described by `quantization_config` in config.json, or in a file of its own.

Codes are packed into int32, lowest bits first; a value is scale · (code − zero point). W is the number of
words in a row of qzeros:

    gptq, gptq_v2   qweight [K · bits / 32, N], packed along K; qzeros [groups, N · bits / 32], packed along N; scales
                    [groups, N]; perhaps g_idx [K], the group of each column. "gptq" stores zero points minus one,
                    "gptq_v2" as they are. With `sym` every zero point is 2^(bits − 1), which shows a wrong layout name
    gemm            qweight [K, N / 8] and qzeros [groups, N / 8], both packed along N, eight columns in the order 0 2 4
                    6 1 3 5 7; scales [groups, N]: AWQ's usual layout
    gemv            qweight [N, K / 8] and qzeros [N, W], packed along K; scales [N, 8 · W], of which the first are used
    gemv_fast       qweight int16 [N / 4, K], of four rows in an order of their own; scales and qzeros float16 [8 · W,
                    N], the latter −scale · zero point

auto-round has these layouts under other names (`packing_format`). Modules may differ in bits and group size (`dynamic`,
`extra_config`); then the shapes of their tensors say which they have. (Frantar et al. 2022; Lin et al. 2023; layouts as
by AutoGPTQ, GPTQModel, AutoAWQ and auto-round.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import (
    INT8,
    QuantizedTensors,
    dense_groups,
    group_format,
    group_weight,
    quantization_method,
    unpack_codes,
    warn_of_requantised,
)
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.log import get_logger
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat
from aethermind.plugins.compatibility import deprecated_fields

__all__ = ["PackedCheckpoint", "Packing", "read_packing"]

logger = get_logger(__name__)

Array = npt.NDArray[Any]

_BITS = {"gptq": (2, 3, 4, 8), "awq": (4,), "auto-round": (2, 3, 4, 5, 6, 7, 8)}
_LAYOUTS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm", "gemv", "gemv_fast")}
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WORD_BITS = 32
_AWQ_CODES = 8
"""Codes of AWQ in a word, of 4 bits."""
_FAST_ROWS = 4
"""Rows whose codes are interleaved in the layout gemv_fast."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The layout, bits and groups with which the matrices of a checkpoint are packed.

    Attributes:
        method: the name of the quantisation method.
        bits: bits of a code.
        group_size: the number of values along K that share a scale; 0 for all.
        layout: the name of the layout, see the beginning of this module.
        is_symmetric: whether the quantization is symmetric: every zero point is `middle`.
        is_mixed: whether modules may differ in bits and group size.
    """

    method: str
    bits: int
    group_size: int
    layout: str
    is_symmetric: bool = False
    is_mixed: bool = False

    @property
    def is_gptq(self) -> bool:
        """Whether it is GPTQ's layout, in either version."""
        return self.layout in _LAYOUTS["gptq"]

    @property
    def zero_shift(self) -> int:
        """The number to add to stored zero points: 1 for the layout "gptq", else 0."""
        return int(self.layout == "gptq")

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def num_groups(self, num_columns: int) -> int:
        """The number of groups along K."""
        return num_columns // self.group_size if self.group_size else 1

    def for_module(self, qweight: tuple[int, ...], qzeros: tuple[int, ...], scales: tuple[int, ...]) -> Packing:
        """Return the packing of one module. If modules may differ, it is inferred from the shapes of its tensors."""
        are_matrices = len(qweight) == len(qzeros) == len(scales) == 2 and 0 not in scales
        if not self.is_mixed or not self.is_gptq or not are_matrices:
            return self
        groups, rows = scales
        bits = qzeros[1] * _WORD_BITS // rows
        columns = qweight[0] * _WORD_BITS // max(bits, 1)
        if bits not in _BITS["auto-round"] or columns % groups:
            return self
        return replace(self, bits=bits, group_size=0 if groups == 1 else columns // groups)

    def shape_of(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """The shape (N, K) of a matrix from the shape of its qweight, which has two dimensions."""
        first, second = qweight
        match self.layout:
            case "gemm":
                return second * _AWQ_CODES, first
            case "gemv":
                return first, second * _AWQ_CODES
            case "gemv_fast":
                return first * _FAST_ROWS, second
            case _:
                return second, first * _WORD_BITS // self.bits

    def expected_tensors(self, rows: int, columns: int) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        """By name suffix, the allowed dtypes and the shape of each tensor of a matrix (N, K)."""
        groups = self.num_groups(columns)
        floats = ("F16", "BF16", "F32")
        padded = self._padded_groups(columns)
        match self.layout:
            case "gemm":
                words = rows // _AWQ_CODES
                word_shapes = (columns, words), (groups, words), (groups, rows)
            case "gemv":
                word_shapes = (rows, columns // _AWQ_CODES), (rows, padded // _AWQ_CODES), (rows, padded)
            case "gemv_fast":
                fast_shapes = (rows // _FAST_ROWS, columns), (padded, rows), (padded, rows)
                return dict(
                    zip(
                        _PART_SUFFIXES,
                        ((("I16",), fast_shapes[0]), (floats, fast_shapes[1]), (floats, fast_shapes[2])),
                        strict=True,
                    )
                )
            case _:
                words = rows * self.bits // _WORD_BITS
                word_shapes = (columns * self.bits // _WORD_BITS, rows), (groups, words), (groups, rows)
        return dict(zip(_PART_SUFFIXES, zip((("I32",), ("I32",), floats), word_shapes, strict=True), strict=True))

    def fills_words(self, rows: int, columns: int) -> bool:
        """Whether the codes of a matrix (N, K) fill whole words along the packed dimension, as they must."""
        if self.is_gptq:
            return rows * self.bits % _WORD_BITS == 0
        packed = {"gemm": rows, "gemv": columns, "gemv_fast": columns}[self.layout]
        return packed % (_AWQ_CODES if self.layout != "gemv_fast" else 64) == 0

    def codes(self, qweight: Array) -> Array:
        """Unpack the codes: uint8 [N, K]."""
        match self.layout:
            case "gemm":
                return np.ascontiguousarray(self._in_column_order(self._unpacked(qweight)).T)
            case "gemv":
                return self._unpacked(qweight)
            case "gemv_fast":
                return _gemv_fast_codes(qweight)
            case _:
                return self._unpacked(np.ascontiguousarray(qweight.T))

    def scales(self, stored: Array, columns: int) -> Array:
        """The scales of groups as they are stored, [N, groups]."""
        scales = stored if self.layout == "gemv" else stored.T
        return np.ascontiguousarray(scales[:, : self.num_groups(columns)])

    def zeros(self, qzeros: Array, scales: Array) -> Array:
        """Unpack the zero points, uint8 [N, groups], of a matrix with these `scales`."""
        if self.layout == "gemv_fast":
            products = -qzeros.T[:, : scales.shape[1]].astype(np.float32)
            with np.errstate(all="ignore"):  # scales that are not finite are refused by the caller
                quotients = np.where(scales == 0, np.float32(self.middle), products / scales)
                zeros: Array = np.clip(np.rint(np.nan_to_num(quotients)), 0, 2 * self.middle - 1).astype(np.uint8)
            return zeros
        # A zero point of 0 is stored as the largest code (0 - 1 wraps around), so the sum wraps around too.
        shifted = self._stored_zeros(qzeros)[:, : scales.shape[1]] + np.uint8(self._actual_zero_shift(qzeros))
        return np.ascontiguousarray(shifted & np.uint8((1 << self.bits) - 1))

    def contradicts_layout_name(self, qzeros: Array) -> bool:
        """Whether stored zero points are those of the other version of GPTQ's layout than its name says."""
        return self._actual_zero_shift(qzeros) != self.zero_shift

    def _actual_zero_shift(self, qzeros: Array) -> int:
        """Return the number to add to stored zero points; for symmetric ones, the number that makes them `middle`.

        Several tools write the name "gptq" for zero points of "gptq_v2", and zero points that are off by one
        make all weights wrong.
        """
        if self.is_gptq and self.is_symmetric:
            stored = self._stored_zeros(qzeros)
            for shift in (self.zero_shift, 1 - self.zero_shift):
                if stored.size and (stored == self.middle - shift).all():
                    return shift
        return self.zero_shift

    def _padded_groups(self, columns: int) -> int:
        """The number of groups in gemv and gemv_fast, which pad it to full words, for small groups to 2 or 4 words."""
        multiple = {64: 2, 32: 4}.get(self.group_size, 1)
        words = -(-self.num_groups(columns) // _AWQ_CODES)
        return -(-words // multiple) * multiple * _AWQ_CODES

    def _stored_zeros(self, qzeros: Array) -> Array:
        unpacked = self._unpacked(qzeros)
        return unpacked if self.layout == "gemv" else self._in_column_order(unpacked).T

    def _unpacked(self, words: Array) -> Array:
        return unpack_codes(words, self.bits, words.shape[1] * _WORD_BITS // self.bits)

    def _in_column_order(self, codes: Array) -> Array:
        if self.layout != "gemm":
            return codes
        ordered = np.empty_like(codes)
        for position, column in enumerate(_AWQ_ORDER):
            ordered[:, column::8] = codes[:, position::8]
        return ordered


_PART_SUFFIXES = (".qweight", ".qzeros", ".scales")


def _gemv_fast_codes(qweight: Array) -> Array:
    """Unpack the layout gemv_fast, in which four rows are interleaved and 32 columns reordered, to uint8 [N, K]."""
    num_row_groups, columns = qweight.shape
    words = np.ascontiguousarray(qweight).view(np.uint16)[..., None]
    codes = (words >> np.arange(0, 16, 4, dtype=np.uint16) & 15).astype(np.uint8)
    rows = codes.reshape(num_row_groups, columns // 64, 4, 64).transpose(0, 2, 1, 3)
    in_eights = rows.reshape(-1, 4, 2, 4).transpose(0, 1, 3, 2).reshape(-1, 4, 4, 2)
    return np.ascontiguousarray(in_eights.transpose(0, 2, 1, 3)).reshape(_FAST_ROWS * num_row_groups, columns)


def read_packing(config: Any, model_name: str) -> Packing:
    """Read a quantization_config of GPTQ (2, 3, 4 or 8 bits), AWQ (4 bits) or auto-round (2 to 8 bits); ConfigError for
    another one. `model_name` is for messages.
    """
    method = quantization_method(config, model_name)
    bits = _first_field(config, "bits", "w_bit")
    if isinstance(bits, str) and bits.isdecimal():
        bits = int(bits)
    group_size = _first_field(config, "group_size", "q_group_size")
    group_size = -1 if group_size is None else group_size
    if type(bits) is not int or bits not in _BITS[method]:
        expected = " or ".join(map(str, _BITS[method]))
        raise ConfigError(f"{model_name!r} is quantised by {method} to {bits!r:.80} bits; {expected} bits can be read.")
    if type(group_size) is not int or not (group_size == -1 or group_size > 0):
        raise ConfigError(
            f"{model_name!r} has a quantization group_size of {group_size!r:.80}; that is a number, or -1."
        )
    layout = _auto_round_layout(config) if method == "auto-round" else _layout(config, method, model_name)
    is_mixed = bool(config.get("dynamic") or config.get("extra_config"))
    is_symmetric = config.get("sym") is not False
    return Packing(method, bits, max(group_size, 0), layout, is_symmetric, is_mixed)


def _layout(config: Mapping[str, Any], method: str, model_name: str) -> str:
    """The layout's name in lower case; tools use several names for the field, and null means the usual layout."""
    known = _LAYOUTS[method]
    names = ("checkpoint_format", "format") if method == "gptq" else ("version",)
    layout_name = _first_field(config, *names)
    if config.get("is_marlin_format"):
        layout_name = "marlin"
    if method == "awq" and str(config.get("backend") or "autoawq").lower() == "llm-awq":
        layout_name = "llm-awq"
    layout = known[0] if layout_name is None else str(layout_name).lower()
    if layout not in known:
        raise ConfigError(
            f"{model_name!r} stores {method} weights in the layout {layout_name!r:.80}; {' and '.join(known)} can be "
            "read. Take the model quantised in that layout, or as .gguf."
        )
    return layout


def _auto_round_layout(config: Mapping[str, Any]) -> str:
    """The layout of `packing_format`: GPTQ's first only under its own name, as AutoGPTQ writes it."""
    layout_name = str(_first_field(config, "packing_format", "backend") or "auto_round:auto_gptq").lower()
    if "awq" in layout_name:
        return "gemm"
    return "gptq" if layout_name.endswith((":auto_gptq", ":gptq")) else "gptq_v2"


def _first_field(config: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of these fields that is not null; None if all are."""
    return next((config[name] for name in names if config.get(name) is not None), None)


_WEIGHT, _QWEIGHT = ".weight", ".qweight"
_QZEROS, _SCALES, _G_IDX = ".qzeros", ".scales", ".g_idx"
_ALL_SUFFIXES = (_QWEIGHT, _QZEROS, _SCALES, _G_IDX)


@deprecated_fields(until="0.4", neutral_names="zero_bias_names")
class PackedCheckpoint(QuantizedTensors):
    """A GPTQ or AWQ checkpoint whose packed matrices are tensors `X.weight`; implements `StoredTensors`.

    Matrices whose zero points are all `middle` get a symmetric weight format. Matrices with groups that no weight
    format has (a size that is not a multiple of 32, or reordered columns) are requantised as int8.
    """

    def __init__(self, stored: StoredTensors, packing: Packing, model_name: str) -> None:
        """Check that the parts of every packed matrix fit together; `model_name` is for messages.

        Raises:
            CheckpointError: there is no packed matrix, or a part of one is missing or has the wrong shape or dtype.
        """
        self._stored = stored
        self._packing = packing
        self._model_name = model_name
        modules = [name.removesuffix(_QWEIGHT) for name in stored.names if name.endswith(_QWEIGHT)]
        if not modules:
            raise CheckpointError(
                f"{model_name} says that it is quantised by {packing.method}, and has no tensor *{_QWEIGHT}. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        part_names = {f"{module}{part}" for module in modules for part in _ALL_SUFFIXES}
        self._unquantised_names = [name for name in stored.names if name not in part_names]
        self._packings = {module: self._packing_of(module) for module in modules}
        self._formats: dict[str, WeightFormat | None] = {}
        self._infos = {f"{module}{_WEIGHT}": self._describe_packed(module) for module in modules}
        duplicate = next((name for name in self._unquantised_names if name in self._infos), None)
        if duplicate is not None:
            raise CheckpointError(
                f"{model_name} has {duplicate!r} both packed and unquantised. Fetch the checkpoint again."
            )
        packings = self._packings.items()
        misnamed = [
            module for module, packing in packings if packing.contradicts_layout_name(self._part(module, _QZEROS))
        ]
        if misnamed:
            logger.warning(
                "%s: the zero points of %d of its %d packed matrices are not stored as checkpoint_format says; "
                "they are read as sym says.",
                model_name, len(misnamed), len(modules),
            )  # fmt: skip
        num_regrouped = sum(format is None for format in self._formats.values())
        warn_of_requantised(model_name, num_regrouped, len(modules), "have groups in an order or size of their own")

    @cached_property
    def zero_bias_names(self) -> tuple[str, ...]:
        """The names of all-zero biases, which GPTQ tools add to modules without a bias."""
        biases = [name.removesuffix("weight") + "bias" for name in self._infos]
        return tuple(name for name in biases if name in self._unquantised_names and not np.any(self._plain_array(name)))

    def _weight(self, name: str) -> QuantizedWeight:
        module = name.removesuffix(_WEIGHT)
        packing, format = self._packings[module], self._formats[module]
        if format is None:
            try:
                return INT8.quantize(self._values(name, np.float32))
            except InvalidArgumentError as error:
                raise CheckpointError(f"{self._model_name}: {name}: {error} Fetch the weights again.") from None
        codes, scales, zeros = self._codes_scales_zeros(module)
        with np.errstate(over="ignore"):
            rounded = scales.astype(np.float16)
        if not np.isfinite(rounded).all():
            raise CheckpointError(
                f"{self._model_name} has {module}.scales that are not finite. Fetch the weights again."
            )
        return group_weight(format, codes, rounded, zeros, packing.middle)

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        module = name.removesuffix(_WEIGHT)
        codes, scales, zeros = self._codes_scales_zeros(module)
        groups = self._column_groups(module, codes.shape[1])
        return dense_groups(codes, scales, zeros, self._packings[module].middle, groups, dtype)

    def _codes_scales_zeros(self, module: str) -> tuple[Array, Array, Array]:
        """Codes [N, K], scales as they are stored [N, groups], and zero points [N, groups]."""
        packing = self._packings[module]
        codes = packing.codes(self._part(module, _QWEIGHT))
        scales = packing.scales(self._part(module, _SCALES), codes.shape[1])
        return codes, scales, packing.zeros(self._part(module, _QZEROS), scales)

    def _describe_packed(self, module: str) -> TensorInfo:
        """Describe a packed matrix; CheckpointError for inconsistent parts."""
        packing = self._packings[module]
        qweight = self._stored.info(f"{module}{_QWEIGHT}")
        if len(qweight.shape) != 2:
            self._fail(module, _QWEIGHT, qweight, "two dimensions")
        rows, columns = packing.shape_of(qweight.shape)
        if packing.group_size and columns % packing.group_size:
            raise CheckpointError(
                f"{self._model_name} has {module} with {columns} columns, which groups of {packing.group_size} do not "
                "divide. Check that quantization_config belongs to the weights."
            )
        expected = packing.expected_tensors(rows, columns)
        if f"{module}{_G_IDX}" in self._stored.names:
            expected[_G_IDX] = (("I32",), (columns,))
        for part, (dtype_names, shape) in expected.items():
            info = self._stored.info(f"{module}{part}")
            if info.dtype_name not in dtype_names or info.shape != shape or not packing.fills_words(rows, columns):
                self._fail(module, part, info, f"{dtype_names[0]} {list(shape)}")
        num_bytes = sum(self._stored.info(f"{module}{part}").num_bytes for part in expected)
        self._formats[module] = self._format(module, columns)
        return TensorInfo(packing.method, (rows, columns), 0, num_bytes, self._formats[module] or INT8)

    def _packing_of(self, module: str) -> Packing:
        """The packing of a module, by the shapes of its tensors if modules may differ."""
        qweight, qzeros, scales = (self._stored.info(f"{module}{end}").shape for end in (_QWEIGHT, _QZEROS, _SCALES))
        return self._packing.for_module(qweight, qzeros, scales)

    def _format(self, module: str, columns: int) -> WeightFormat | None:
        """The weight format of a module's matrix; None if no format has its groups."""
        packing = self._packings[module]
        if not np.array_equal(
            self._column_groups(module, columns), np.arange(columns) // (packing.group_size or columns)
        ):
            return None
        scales = packing.scales(self._part(module, _SCALES), columns)
        is_symmetric = bool((packing.zeros(self._part(module, _QZEROS), scales) == packing.middle).all())
        return group_format(packing.bits, packing.group_size, not is_symmetric)

    def _column_groups(self, module: str, columns: int) -> Array:
        """The group of each column; CheckpointError for a group that does not exist."""
        packing = self._packings[module]
        name = f"{module}{_G_IDX}"
        if name not in self._stored.names:
            return np.arange(columns) // (packing.group_size or max(columns, 1))
        groups = self._part(module, _G_IDX)
        if not groups.any():  # all zero: not written, such as in a file of which only the header was fetched
            return np.arange(columns) // (packing.group_size or max(columns, 1))
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < packing.num_groups(columns):
            raise CheckpointError(
                f"{self._model_name} has {name} beyond its {packing.num_groups(columns)} groups. Fetch the weights "
                "again."
            )
        return groups

    def _part(self, module: str, part: str) -> Array:
        return self._plain_array(f"{module}{part}")

    def _plain_array(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "tensors other than packed matrices are unquantised"
        return array

    def _fail(self, module: str, part: str, info: TensorInfo, expected: str) -> NoReturn:
        packing = self._packings[module]
        raise CheckpointError(
            f"{self._model_name} has {module}{part} of {info.dtype_name} {list(info.shape)}, where {expected} is "
            f"expected for {packing.method} of {packing.bits} bits in groups of {packing.group_size or 'a row'}. Check "
            "that quantization_config belongs to the weights."
        )
