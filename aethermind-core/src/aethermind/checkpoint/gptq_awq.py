"""GPTQ, AWQ and auto-round checkpoints: packed matrices as quantised weights (`checkpoint.packing` has the layouts)."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.integer_groups import INT8, dense_groups, group_format, group_weight
from aethermind.checkpoint.packing import Packing
from aethermind.checkpoint.quantized_tensors import QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError
from aethermind.log import get_logger
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat
from aethermind.plugins.compatibility import deprecated_fields

__all__ = ["PackedCheckpoint"]

logger = get_logger(__name__)

Array = npt.NDArray[Any]

_WEIGHT, _QWEIGHT = ".weight", ".qweight"
_QZEROS, _SCALES, _G_IDX = ".qzeros", ".scales", ".g_idx"
_PACKED_SUFFIXES = (_QWEIGHT, _QZEROS, _SCALES, _G_IDX)


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
        self._packings = {module: self._packing_of(module) for module in modules}
        self._formats: dict[str, WeightFormat | None] = {}
        self._infos = {f"{module}{_WEIGHT}": self._describe_packed(module) for module in modules}
        duplicate = next((name for name in self._others if name in self._infos), None)
        if duplicate is not None:
            raise CheckpointError(f"{where} has {duplicate!r} both packed and unquantised. Fetch the checkpoint again.")
        packings = self._packings.items()
        misnamed = [module for module, packing in packings if packing.contradicts_name(self._part(module, _QZEROS))]
        if misnamed:
            logger.warning(
                "%s: the zero points of %d of its %d packed matrices are not stored as checkpoint_format says; "
                "they are read as sym says.",
                where, len(misnamed), len(modules),
            )  # fmt: skip
        num_regrouped = sum(format is None for format in self._formats.values())
        warn_of_requantised(where, num_regrouped, len(modules), "have groups in an order or size of their own")

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
        packing, format = self._packings[module], self._formats[module]
        codes = packing.codes(self._part(module, _QWEIGHT))
        scales = packing.scales(self._part(module, _SCALES), codes.shape[1])
        if not np.isfinite(scales).all():
            raise CheckpointError(f"{self._where} has {module}.scales that are not finite. Fetch the weights again.")
        zeros = packing.zeros(self._part(module, _QZEROS), scales)
        if format is None:
            groups = self._groups(module, codes.shape[1])
            return INT8.quantize(dense_groups(codes, scales, zeros, packing.middle, groups))
        return group_weight(format, codes, scales, zeros, packing.middle)

    def _describe_packed(self, module: str) -> TensorInfo:
        """Describe a packed matrix; CheckpointError for inconsistent parts."""
        packing = self._packings[module]
        qweight = self._stored.info(f"{module}{_QWEIGHT}")
        if len(qweight.shape) != 2:
            self._fail(module, _QWEIGHT, qweight, "two dimensions")
        rows, columns = packing.shape_of(qweight.shape)
        if packing.group_size and columns % packing.group_size:
            raise CheckpointError(
                f"{self._where} has {module} with {columns} columns, which groups of {packing.group_size} do not "
                "divide. Check that quantization_config belongs to the weights."
            )
        wanted = packing.parts(rows, columns)
        if f"{module}{_G_IDX}" in self._stored.names:
            wanted[_G_IDX] = (("I32",), (columns,))
        for part, (dtype_names, shape) in wanted.items():
            info = self._stored.info(f"{module}{part}")
            if info.dtype_name not in dtype_names or info.shape != shape or not packing.fills_words(rows, columns):
                self._fail(module, part, info, f"{dtype_names[0]} {list(shape)}")
        nbytes = sum(self._stored.info(f"{module}{part}").num_bytes for part in wanted)
        self._formats[module] = self._format(module, columns)
        return TensorInfo(packing.method, (rows, columns), 0, nbytes, self._formats[module] or INT8)

    def _packing_of(self, module: str) -> Packing:
        """The packing of a module: where modules may differ, by the shapes of its tensors."""
        qweight, qzeros, scales = (self._stored.info(f"{module}{end}").shape for end in (_QWEIGHT, _QZEROS, _SCALES))
        return self._packing.of_shapes(qweight, qzeros, scales)

    def _format(self, module: str, columns: int) -> WeightFormat | None:
        packing = self._packings[module]
        if not np.array_equal(self._groups(module, columns), np.arange(columns) // (packing.group_size or columns)):
            return None
        scales = packing.scales(self._part(module, _SCALES), columns)
        is_symmetric = bool((packing.zeros(self._part(module, _QZEROS), scales) == packing.middle).all())
        return group_format(packing.bits, packing.group_size, not is_symmetric)

    def _groups(self, module: str, columns: int) -> Array:
        """The group of each column; CheckpointError for a group that does not exist."""
        packing = self._packings[module]
        name = f"{module}{_G_IDX}"
        if name not in self._stored.names:
            return np.arange(columns) // (packing.group_size or max(columns, 1))
        groups = self._part(module, _G_IDX)
        if not groups.any():  # not written, such as in files of which only the header is there
            return np.arange(columns) // (packing.group_size or max(columns, 1))
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

    def _fail(self, module: str, part: str, info: TensorInfo, wanted: str) -> NoReturn:
        packing = self._packings[module]
        raise CheckpointError(
            f"{self._where} has {module}{part} of {info.dtype_name} {list(info.shape)}, where {wanted} is expected for "
            f"{packing.method} of {packing.bits} bits in groups of {packing.group_size or 'a row'}. Check that "
            "quantization_config belongs to the weights."
        )
