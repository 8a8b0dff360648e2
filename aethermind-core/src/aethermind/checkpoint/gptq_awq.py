"""GPTQ and AWQ checkpoints: a reader, and the packing that `quantization_config` (or a file of its own) describes.

A matrix [N, K] is stored as three tensors (GPTQ: also `g_idx`); codes are packed into int32, lowest bits first:

    GPTQ    qweight [K · bits / 32, N], packed along K; qzeros [groups, N · bits / 32], packed along N; scales
            [groups, N]; g_idx [K], the group of each column. `checkpoint_format` "gptq" stores zero points minus one,
            "gptq_v2" as they are. With `sym` every zero point is 2^(bits − 1), which shows a wrong layout name
    AWQ     qweight [K, N / 8] and qzeros [groups, N / 8], both packed along N, eight columns in the order 0 2 4 6 1 3
            5 7; scales [groups, N]. This is `version` "gemm"

A value is scale · (code − zero point). (Frantar et al. 2022; Lin et al. 2023; layouts as by AutoGPTQ and AutoAWQ.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.integer_groups import INT8, dense_groups, group_format, group_weight, unpack_codes
from aethermind.checkpoint.quantized_checkpoint import quantization_method
from aethermind.checkpoint.quantized_tensors import QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError
from aethermind.log import get_logger
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat
from aethermind.plugins.compatibility import deprecated_fields

__all__ = ["PackedCheckpoint", "Packing", "read_packing"]

logger = get_logger(__name__)

Array = npt.NDArray[Any]

_BITS = {"gptq": (2, 3, 4, 8), "awq": (4,)}
_LAYOUTS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of a checkpoint's matrices, by its configuration.

    Attributes:
        group_size: the number of values along K that share a scale; 0 for all.
        zero_shift: the number to add to stored zero points: 1 for the layout "gptq", else 0.
        is_symmetric: whether the quantization is symmetric: every zero point is `middle`.
    """

    method: str
    bits: int
    group_size: int
    zero_shift: int
    is_symmetric: bool = False

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def num_words(self, num_codes: int) -> int:
        """The number of int32 that a row of codes takes."""
        return num_codes * self.bits // 32

    def num_codes(self, num_words: int) -> int:
        """The number of codes that a row of int32 holds."""
        return num_words * 32 // self.bits

    def num_groups(self, num_columns: int) -> int:
        """The number of groups along K."""
        return num_columns // self.group_size if self.group_size else 1

    def shape_of(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """The shape (N, K) of a matrix from the shape of its qweight, which has two dimensions."""
        first, second = qweight
        return (second, self.num_codes(first)) if self.method == "gptq" else (self.num_codes(second), first)

    def qweight_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of the qweight of a matrix (N, K)."""
        return (self.num_words(columns), rows) if self.method == "gptq" else (columns, self.num_words(rows))

    def codes(self, qweight: Array) -> Array:
        """Unpack the codes: uint8 [N, K]."""
        if self.method == "gptq":
            return self._unpacked(np.ascontiguousarray(qweight.T))
        return np.ascontiguousarray(self._in_order(self._unpacked(qweight)).T)

    def zeros(self, qzeros: Array) -> Array:
        """Unpack the zero points: uint8 [N, groups]."""
        # A zero point of 0 is stored as the largest code (0 - 1 wraps around), so the sum wraps around too.
        shifted = self._stored_zeros(qzeros) + np.uint8(self._shift_of(qzeros))
        return np.ascontiguousarray(shifted & np.uint8((1 << self.bits) - 1))

    def contradicts_name(self, qzeros: Array) -> bool:
        """Whether the stored zero points contradict the layout's name."""
        return self._shift_of(qzeros) != self.zero_shift

    def _shift_of(self, qzeros: Array) -> int:
        """Return the number to add to stored zero points; for symmetric ones, the number that makes them `middle`.

        Several tools write the name "gptq" for zero points of "gptq_v2", and zero points that are off by one
        make all weights wrong.
        """
        if self.method == "gptq" and self.is_symmetric:
            stored = self._stored_zeros(qzeros)
            for shift in (self.zero_shift, 1 - self.zero_shift):
                if stored.size and (stored == self.middle - shift).all():
                    return shift
        return self.zero_shift

    def _stored_zeros(self, qzeros: Array) -> Array:
        return self._in_order(self._unpacked(qzeros)).T

    def _unpacked(self, words: Array) -> Array:
        return unpack_codes(words, self.bits, self.num_codes(words.shape[1]))

    def _in_order(self, codes: Array) -> Array:
        if self.method == "gptq":
            return codes
        ordered = np.empty_like(codes)
        for position, column in enumerate(_AWQ_ORDER):
            ordered[:, column::8] = codes[:, position::8]
        return ordered


def read_packing(described: Any, where: str) -> Packing:
    """Read a quantization_config; ConfigError for anything but GPTQ of 2, 3, 4 or 8 bits and AWQ of 4 bits.

    `where` names the model in messages.
    """
    method = quantization_method(described, where)
    bits = _first(described, "bits", "w_bit")
    if isinstance(bits, str) and bits.isdecimal():
        bits = int(bits)
    group_size = _first(described, "group_size", "q_group_size")
    group_size = -1 if group_size is None else group_size
    if isinstance(bits, bool) or bits not in _BITS[method]:
        wanted = " or ".join(map(str, _BITS[method]))
        raise ConfigError(f"{where!r} is quantised by {method} to {bits!r:.80} bits; {wanted} bits can be read.")
    if type(group_size) is not int or not (group_size == -1 or group_size > 0):
        raise ConfigError(f"{where!r} has a quantization group_size of {group_size!r:.80}; that is a number, or -1.")
    layout = _layout(described, method, where)
    _check_modules(described, bits, group_size, where)
    zero_shift = 1 if layout == "gptq" else 0
    return Packing(method, bits, max(group_size, 0), zero_shift, described.get("sym") is not False)


def _layout(described: Mapping[str, Any], method: str, where: str) -> str:
    """The layout's name in lower case; tools use several names for the field, and null means the usual layout."""
    known = _LAYOUTS[method]
    names = ("checkpoint_format", "format") if method == "gptq" else ("version",)
    given = _first(described, *names)
    if described.get("is_marlin_format"):
        given = "marlin"
    if method == "awq" and str(described.get("backend") or "autoawq").lower() == "llm-awq":
        given = "llm-awq"
    layout = known[0] if given is None else str(given).lower()
    if layout not in known:
        raise ConfigError(
            f"{where!r} stores {method} weights in the layout {given!r:.80}; {' and '.join(known)} can be read. Take "
            "the model quantised in that layout, or as .gguf."
        )
    return layout


def _check_modules(described: Mapping[str, Any], bits: int, group_size: int, where: str) -> None:
    """ConfigError if GPTQModel's `dynamic` quantises modules differently; excluded modules (`-:`) are unquantised."""
    dynamic = described.get("dynamic") or {}
    overrides = dynamic.values() if isinstance(dynamic, Mapping) else ()
    for override in overrides:
        settings = {"bits": bits, "group_size": group_size, **(override if isinstance(override, Mapping) else {})}
        if (settings["bits"], settings["group_size"]) != (bits, group_size):
            raise ConfigError(
                f"{where!r} has modules with other bits or group_size than the rest (dynamic in quantization_config), "
                "which is not supported. Take a model that is quantised in one way, or as .gguf."
            )


def _first(described: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is not null."""
    return next((described[name] for name in names if described.get(name) is not None), None)


_WEIGHT, _QWEIGHT = ".weight", ".qweight"
_PACKED_SUFFIXES = (_QWEIGHT, ".qzeros", ".scales", ".g_idx")


@deprecated_fields(until="0.4", neutral_names="zero_bias_names")
class PackedCheckpoint(QuantizedTensors):
    """A GPTQ or AWQ checkpoint whose packed matrices are tensors `X.weight`; implements `StoredTensors`.

    Matrices whose zero points are all `middle` get a symmetric weight format. Matrices with groups that no weight
    format has (a size that is not a multiple of 32, or reordered columns) are requantised as int8.
    """

    def __init__(self, stored: StoredTensors, packing: Packing, where: str) -> None:
        """Check that the parts of every packed matrix fit together; `where` names the model in messages.

        Raises:
            CheckpointError: there is no packed matrix, or a part of one is missing or has the wrong shape or dtype.
        """
        self._stored = stored
        self._packing = packing
        self._where = where
        modules = [name.removesuffix(_QWEIGHT) for name in stored.names if name.endswith(_QWEIGHT)]
        if not modules:
            raise CheckpointError(
                f"{where} says that it is quantised by {packing.method}, and has no tensor *{_QWEIGHT}. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        parts = {f"{module}{part}" for module in modules for part in _PACKED_SUFFIXES}
        self._others = [name for name in stored.names if name not in parts]
        self._infos = {f"{module}.weight": self._describe_packed(module) for module in modules}
        duplicate = next((name for name in self._others if name in self._infos), None)
        if duplicate is not None:
            raise CheckpointError(f"{where} has {duplicate!r} both packed and unquantised. Fetch the checkpoint again.")
        misnamed = [module for module in modules if packing.contradicts_name(self._part(module, ".qzeros"))]
        if misnamed:
            logger.warning(
                "%s: the zero points of %d of its %d packed matrices are not stored as checkpoint_format says; "
                "they are read as sym says.",
                where, len(misnamed), len(modules),
            )  # fmt: skip
        regrouped = [
            name
            for name, info in self._infos.items()
            if self._format(name.removesuffix(_WEIGHT), info.shape[1]) is None
        ]
        warn_of_requantised(where, len(regrouped), len(modules), "have groups in an order or size of their own")

    @cached_property
    def zero_bias_names(self) -> tuple[str, ...]:
        """The names of all-zero biases, which GPTQ tools add to modules without a bias."""
        biases = [name.removesuffix("weight") + "bias" for name in self._infos]
        return tuple(name for name in biases if name in self._others and not np.any(self._array(name)))

    def array(self, name: str) -> Array | QuantizedWeight:
        """A tensor's values; a packed matrix is a QuantizedWeight.

        Raises CheckpointError for an unknown name, and for scales that are not finite in float16.
        """
        info = self._infos.get(name)
        if info is None:
            return self._stored.array(name)
        module = name.removesuffix(_WEIGHT)
        packing = self._packing
        codes = packing.codes(self._part(module, _QWEIGHT))
        zeros = packing.zeros(self._part(module, ".qzeros"))
        scales = np.ascontiguousarray(self._part(module, ".scales").T).astype(np.float16)
        if not np.isfinite(scales).all():
            raise CheckpointError(f"{self._where} has {module}.scales that are not finite. Fetch the weights again.")
        format = self._format(module, codes.shape[1])
        if format is None:
            groups = self._groups(module, codes.shape[1])
            return INT8.quantize(dense_groups(codes, scales, zeros, packing.middle, groups))
        return group_weight(format, codes, scales, zeros, packing.middle)

    def _describe_packed(self, module: str) -> TensorInfo:
        """Describe a packed matrix; CheckpointError for inconsistent parts."""
        packing = self._packing
        qweight = self._stored.info(f"{module}{_QWEIGHT}")
        if len(qweight.shape) != 2:
            self._fail(module, _QWEIGHT, qweight, "int32 of two dimensions")
        rows, columns = packing.shape_of(qweight.shape)
        if packing.group_size and columns % packing.group_size:
            raise CheckpointError(
                f"{self._where} has {module} with {columns} columns, which groups of {packing.group_size} do not "
                "divide. Check that quantization_config belongs to the weights."
            )
        groups = packing.num_groups(columns)
        wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            _QWEIGHT: (("I32",), packing.qweight_shape(rows, columns)),
            ".qzeros": (("I32",), (groups, packing.num_words(rows))),
            ".scales": (("F16", "BF16", "F32"), (groups, rows)),
        }
        if f"{module}.g_idx" in self._stored.names:
            wanted[".g_idx"] = (("I32",), (columns,))
        for part, (dtype_names, shape) in wanted.items():
            info = self._stored.info(f"{module}{part}")
            if info.dtype_name not in dtype_names or info.shape != shape or rows * packing.bits % 32:
                self._fail(module, part, info, f"{dtype_names[0]} {list(shape)}")
        nbytes = sum(self._stored.info(f"{module}{part}").num_bytes for part in wanted)
        return TensorInfo(packing.method, (rows, columns), 0, nbytes, self._format(module, columns) or INT8)

    def _format(self, module: str, columns: int) -> WeightFormat | None:
        packing = self._packing
        if not np.array_equal(self._groups(module, columns), np.arange(columns) // (packing.group_size or columns)):
            return None
        is_symmetric = bool((packing.zeros(self._part(module, ".qzeros")) == packing.middle).all())
        return group_format(packing.bits, packing.group_size, not is_symmetric)

    def _groups(self, module: str, columns: int) -> Array:
        """The group of each column; CheckpointError for a group that does not exist."""
        packing = self._packing
        name = f"{module}.g_idx"
        if name not in self._stored.names:
            return np.arange(columns) // (packing.group_size or max(columns, 1))
        groups = self._part(module, ".g_idx")
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < packing.num_groups(columns):
            raise CheckpointError(
                f"{self._where} has {name} beyond its {packing.num_groups(columns)} groups. Fetch the weights again."
            )
        return groups

    def _part(self, module: str, part: str) -> Array:
        return self._array(f"{module}{part}")

    def _array(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "tensors other than packed matrices are unquantised"
        return array

    def _fail(self, module: str, part: str, info: TensorInfo, wanted: str) -> None:
        raise CheckpointError(
            f"{self._where} has {module}{part} of {info.dtype_name} {list(info.shape)}, where {wanted} is expected for "
            f"{self._packing.method} of {self._packing.bits} bits in groups of {self._packing.group_size or 'a row'}. "
            "Check that quantization_config belongs to the weights."
        )
