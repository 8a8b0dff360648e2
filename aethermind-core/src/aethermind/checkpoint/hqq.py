"""Checkpoints of HQQ in safetensors: codes with a scale and a floating-point zero point for each group.

    X.W_q      codes of 1 to 8 bits. The matrix [N, K] is taken as rows of `group_size` values (axis 1), or as that many
               rows of the values in turn (axis 0). Bytes hold codes of 1, 2, 4 or 8 bits, words of 32 bits ten codes of
               3: the first part of all rows in the highest bits, the next below. They may be viewed as float numbers
    X.scale, X.zero                one for each group: scale · (code − zero)
    X.shape, X.axis, X.group_size, X.nbits, X.packing, …     entries that describe the layer, each stored as a tensor

Groups of a row become a format with offsets, −scale · zero: codes are exact, scales and offsets are rounded to float16.
Other groups are requantised as int8. (Badri and Shaji 2023; the layout is the package's.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import INT8, QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["HqqCheckpoint"]

Array = npt.NDArray[Any]

_WEIGHT, _CODES, _SCALE, _ZERO = ".weight", ".W_q", ".scale", ".zero"
_INTEGER_ENTRIES = ("axis", "group_size", "nbits")
_OTHER_ENTRIES = (
    *("shape", "packing", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype"),
    *("offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize", "round_zero"),
)
_SCALE_DTYPES = ("F16", "BF16", "F32")
_PACKINGS = {"8bit_u8": (1, 8), "4bit_u8": (2, 4), "2bit_u8": (4, 2), "1bit_u8": (8, 1), "3bit_32": (10, 3)}
"""By the name of a packing: codes of a byte or word, and bits of a code."""
_MAX_ENTRY_VALUES = 64


@dataclass(frozen=True, slots=True)
class _Matrix:
    """How one matrix is stored, by the entries of its layer. `format` is None if it is requantised."""

    shape: tuple[int, int]
    axis: int
    group_size: int
    bits: int
    packing: str

    @property
    def num_groups(self) -> int:
        """The number of groups of the matrix."""
        return prod(self.shape) // self.group_size

    @property
    def grouped_shape(self) -> tuple[int, int]:
        """The shape of the values when they were quantised: a group is a row (axis 1) or a column (axis 0)."""
        return (self.num_groups, self.group_size) if self.axis else (self.group_size, self.num_groups)

    @property
    def format(self) -> WeightFormat | None:
        """The format with offsets that holds the groups: of 4 bits and 64 or 32 columns, or of 8 bits and 32
        columns.
        """
        if not self.axis or self.shape[1] % self.group_size or self.group_size % 32:
            return None
        if self.bits > 4:
            return parse_format("int8_offset")
        return parse_format("int4_offset" if self.group_size % 64 else "int4_offset_g64")

    def unpacked(self, stored: Array) -> Array:
        """Unpack the codes: uint8 of `grouped_shape`."""
        per_word, bits = _PACKINGS[self.packing]
        rows, columns = self.grouped_shape
        flat = np.ascontiguousarray(stored).reshape(-1).view(np.uint32 if self.packing == "3bit_32" else np.uint8)
        words = flat.reshape(-(-rows // per_word), columns)
        shifts = (np.arange(per_word)[::-1] * bits).astype(words.dtype)
        parts = [words >> shift for shift in shifts]
        codes: Array = (np.concatenate(parts) & ((1 << bits) - 1)).astype(np.uint8)
        return codes[:rows]


class HqqCheckpoint(QuantizedTensors):
    """A checkpoint of HQQ whose matrices are QuantizedWeights `X.weight`; implements `StoredTensors`. Immutable."""

    def __init__(self, stored: StoredTensors, model_name: str) -> None:
        """Check that the parts of each matrix fit together; `model_name` is for messages.

        Raises:
            CheckpointError: there is no quantised matrix, or a part of one is missing or does not fit.
        """
        self._stored = stored
        self._model_name = model_name
        self._names = frozenset(stored.names)
        modules = [name.removesuffix(_CODES) for name in stored.names if name.endswith(_CODES)]
        if not modules:
            raise CheckpointError(
                f"{model_name} says that it is quantised by HQQ, and has no tensor *{_CODES}. Take quantization_config "
                "out of config.json if its weights are not quantised."
            )
        self._matrices = {module: self._describe(module) for module in modules}
        part_suffixes = (_CODES, _SCALE, _ZERO, *(f".{entry}" for entry in (*_INTEGER_ENTRIES, *_OTHER_ENTRIES)))
        used_names = {f"{module}{part}" for module in modules for part in part_suffixes}
        self._unquantised_names = tuple(name for name in stored.names if name not in used_names)
        self._infos = {
            f"{module}{_WEIGHT}": TensorInfo(
                f"hqq{matrix.bits}",
                matrix.shape,
                0,
                sum(stored.info(f"{module}{part}").num_bytes for part in (_CODES, _SCALE, _ZERO)),
                matrix.format or INT8,
            )
            for module, matrix in self._matrices.items()
        }
        num_requantised = sum(matrix.format is None for matrix in self._matrices.values())
        warn_of_requantised(
            model_name, num_requantised, len(modules), "have groups that are not 32 columns or more of a row"
        )

    def _weight(self, name: str) -> QuantizedWeight:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        if matrix.format is None:
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # INT8.quantize refuses values that are not finite
                    return INT8.quantize(self._values(name, np.float32))
            except InvalidArgumentError as error:
                raise CheckpointError(f"{self._model_name}: {name}: {error} Fetch the weights again.") from None
        codes, scales, zeros = self._codes_scales_zeros(module)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = [part.astype(np.float16) for part in (scales, -scales * zeros)]
        if not all(np.isfinite(part).all() for part in rounded):
            raise CheckpointError(
                f"{self._model_name} has {module}{_SCALE} or {_ZERO} that are not finite in float16. Fetch the weights "
                "again."
            )
        rows = matrix.shape[0]
        per_group = matrix.group_size // matrix.format.block
        block_parameters = [
            np.repeat(np.broadcast_to(part, matrix.num_groups).reshape(rows, -1), per_group, axis=1) for part in rounded
        ]
        return QuantizedWeight(
            matrix.format, codes.reshape(matrix.shape), block_parameters[0], None, block_parameters[1]
        )

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        module = name.removesuffix(_WEIGHT)
        matrix = self._matrices[module]
        codes, scales, zeros = self._codes_scales_zeros(module)
        parameter_shape = (-1, 1) if matrix.axis else (1, -1)
        values: Array = (codes - zeros.reshape(parameter_shape)) * scales.reshape(parameter_shape)
        return values.reshape(matrix.shape)

    def _codes_scales_zeros(self, module: str) -> tuple[Array, Array, Array]:
        """The codes of a matrix, uint8 of `grouped_shape`, and the scales and zero points, float32 [groups] or [1]."""
        codes = self._matrices[module].unpacked(self._plain_array(f"{module}{_CODES}"))
        scales, zeros = (
            self._plain_array(f"{module}{part}").astype(np.float32).reshape(-1) for part in (_SCALE, _ZERO)
        )
        return codes, scales, zeros

    def _describe(self, module: str) -> _Matrix:
        """Describe a matrix; CheckpointError for entries or parts that are missing or do not fit."""
        for entry in ("quant_scale", "quant_zero"):
            if any(self._entry(module, entry)):
                self._fail(module, f"has quantised {entry.removeprefix('quant_')}s, which are not read")
        axis, group_size, bits = (self._integer(module, entry) for entry in _INTEGER_ENTRIES)
        sizes = self._entry(module, "shape")
        shape = tuple(int(size) for size in sizes) if np.isfinite(sizes).all() else ()
        packing = "".join(chr(int(char)) for char in self._entry(module, "packing") if 0 < char < 128)
        is_matrix = len(shape) == 2 and min(shape) > 0 and prod(shape) < 2**60
        if not is_matrix or axis not in (0, 1) or packing not in _PACKINGS or not 0 < group_size <= prod(shape):
            self._fail(
                module, f"of shape {list(shape)!s:.40}, axis {axis}, groups of {group_size} and packing {packing!r:.20}"
            )
        rows, columns = shape
        matrix = _Matrix((rows, columns), axis, group_size, bits if bits > 4 else min(bits, 4), packing)
        per_word, _ = _PACKINGS[packing]
        grouped_rows, grouped_columns = matrix.grouped_shape
        word_bytes = 4 if packing == "3bit_32" else 1
        num_bytes = -(-grouped_rows // per_word) * grouped_columns * word_bytes
        if prod(shape) % group_size or self._stored.info(f"{module}{_CODES}").num_bytes != num_bytes:
            self._fail(module, f"of shape {list(shape)} in groups of {group_size}, which take {num_bytes} bytes")
        for part in (_SCALE, _ZERO):
            info = self._stored.info(f"{module}{part}") if f"{module}{part}" in self._names else None
            if info is None or info.dtype_name not in _SCALE_DTYPES or prod(info.shape) not in (1, matrix.num_groups):
                actual = "nothing" if info is None else f"{info.dtype_name} {list(info.shape)}"
                self._fail(module, f"with {actual} for {part[1:]}, where {matrix.num_groups} numbers are expected")
        return matrix

    def _integer(self, module: str, entry: str) -> int:
        values = self._entry(module, entry)
        if len(values) != 1 or not np.isfinite(values[0]) or not 0 <= values[0] < 2**31:
            self._fail(module, f"with {entry} {values!r:.40}, which is not a number")
        return -(-int(values[0] * 100) // 100)  # nbits of 1.58 means codes of 2 bits

    def _entry(self, module: str, entry: str) -> list[Any]:
        """The values of an entry of a layer; empty if it does not exist."""
        name = f"{module}.{entry}"
        if name not in self._names or prod(self._stored.info(name).shape) > _MAX_ENTRY_VALUES:
            return []
        values: list[Any] = self._plain_array(name).reshape(-1).tolist()
        return values

    def _plain_array(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)

    def _fail(self, module: str, problem: str) -> NoReturn:
        raise CheckpointError(
            f"{self._model_name} has a matrix {module!r:.120} {problem} (HQQ). Fetch the weights again."
        )
