"""A GPTQ or AWQ checkpoint as the tensors of the model: each packed matrix under its own name, `X.weight`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.packing import Packing
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError
from aethermind.log import get_logger
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["PackedCheckpoint"]

Array = npt.NDArray[Any]

logger = get_logger(__name__)

_CODES = ".qweight"
_PARTS = (_CODES, ".qzeros", ".scales", ".g_idx")


class PackedCheckpoint:
    """Implements `StoredTensors` over the tensors as they are stored.

    Matrices whose zero points all stand in the middle are read in formats without any. Those whose groups a format does
    not have (a size that is not a multiple of 32, or columns in an order of their own) are read as dense float16.
    """

    def __init__(self, stored: StoredTensors, packing: Packing, where: str) -> None:
        """Check that the parts of every packed matrix fit together; `where` names the model in messages.

        Raises:
            CheckpointError: there is no packed matrix, or one lacks a part, or has one of another shape or dtype.
        """
        self._stored = stored
        self._packing = packing
        self._where = where
        modules = [name.removesuffix(_CODES) for name in stored.names if name.endswith(_CODES)]
        if not modules:
            raise CheckpointError(
                f"{where} says that it is quantised by {packing.method}, and has no tensor *{_CODES}. Take "
                "quantization_config out of config.json if its weights are plain."
            )
        parts = {f"{module}{part}" for module in modules for part in _PARTS}
        self._plain = [name for name in stored.names if name not in parts]
        self._infos = {f"{module}.weight": self._checked(module) for module in modules}
        twice = next((name for name in self._plain if name in self._infos), None)
        if twice is not None:
            raise CheckpointError(f"{where} has {twice!r} both packed and plain. Fetch the checkpoint again.")
        misnamed = [module for module in modules if packing.contradicts_name(self._part(module, ".qzeros"))]
        if misnamed:
            logger.warning(
                "%s: the zero points of %d of its %d packed matrices are not stored as checkpoint_format says; "
                "they are read as sym says.",
                where, len(misnamed), len(modules),
            )  # fmt: skip
        num_dense = sum(info.weight_format is None for info in self._infos.values())
        if num_dense:
            logger.warning(
                "%s: %d of its %d packed matrices have groups in an order or of a size that no weight format has; they "
                "are computed with as dense float16.",
                where, num_dense, len(modules),
            )  # fmt: skip

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return self._stored.paths

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, packed matrices last."""
        return (*self._plain, *self._infos)

    @property
    def total_bytes(self) -> int:
        """Size of all values together, as they are stored."""
        return self._stored.total_bytes

    @cached_property
    def neutral_names(self) -> tuple[str, ...]:
        """Biases of zeros, which GPTQ's tools give to modules that had none."""
        biases = [name.removesuffix("weight") + "bias" for name in self._infos]
        return tuple(name for name in biases if name in self._plain and not np.any(self._array(name)))

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        return self._infos.get(name) or self._stored.info(name)

    def array(self, name: str) -> Array | QuantizedWeight:
        """A tensor's values; of a packed matrix its unpacked codes, or float16 where no format has its groups.

        Raises CheckpointError for an unknown name, and for scales that are not finite in float16.
        """
        info = self._infos.get(name)
        if info is None:
            return self._stored.array(name)
        module = name.removesuffix(".weight")
        packing = self._packing
        codes = packing.codes(self._part(module, _CODES))
        zeros = packing.zeros(self._part(module, ".qzeros"))
        scales = np.ascontiguousarray(self._part(module, ".scales").T).astype(np.float16)
        if not np.isfinite(scales).all():
            raise CheckpointError(f"{self._where} has {module}.scales that are not finite. Fetch the weights again.")
        format = info.weight_format
        if format is None:
            groups = self._groups(module, codes.shape[1])
            steps = codes.astype(np.float32) - zeros[:, groups]
            return (steps * scales[:, groups]).astype(np.float16)
        if format.has_zero_point:
            return QuantizedWeight(format, codes, scales, zeros)
        return QuantizedWeight(format, (codes - np.uint8(packing.middle)).view(np.int8), scales)

    def _checked(self, module: str) -> TensorInfo:
        """The description of a packed matrix, or the CheckpointError of its parts."""
        packing = self._packing
        qweight = self._stored.info(f"{module}{_CODES}")
        if len(qweight.shape) != 2:
            self._fail(module, _CODES, qweight, "int32 of two dimensions")
        rows, columns = packing.shape_of(qweight.shape)
        if packing.group_size and columns % packing.group_size:
            raise CheckpointError(
                f"{self._where} has {module} with {columns} columns, which groups of {packing.group_size} do not "
                "divide. Check that quantization_config belongs to the weights."
            )
        groups = packing.num_groups(columns)
        wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            _CODES: (("I32",), packing.qweight_shape(rows, columns)),
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
        format = self._format(module, columns)
        return TensorInfo("F16" if format is None else packing.method, (rows, columns), 0, nbytes, format)

    def _format(self, module: str, columns: int) -> WeightFormat | None:
        packing = self._packing
        if not np.array_equal(self._groups(module, columns), np.arange(columns) // (packing.group_size or columns)):
            return None
        is_symmetric = bool((packing.zeros(self._part(module, ".qzeros")) == packing.middle).all())
        length = f"g{packing.group_size}" if packing.group_size else "channel"
        # Codes of fewer than 4 bits are held in 4, in which they have the same values.
        return parse_format(f"int{max(packing.bits, 4)}{'' if is_symmetric else '_zp'}_{length}")

    def _groups(self, module: str, columns: int) -> Array:
        """The group of each column; CheckpointError where there is no such group."""
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
        assert not isinstance(array, QuantizedWeight), "what is stored beside packed matrices is plain"
        return array

    def _fail(self, module: str, part: str, info: TensorInfo, wanted: str) -> None:
        raise CheckpointError(
            f"{self._where} has {module}{part} of {info.dtype_name} {list(info.shape)}, where {wanted} is expected for "
            f"{self._packing.method} of {self._packing.bits} bits in groups of {self._packing.group_size or 'a row'}. "
            "Check that quantization_config belongs to the weights."
        )
