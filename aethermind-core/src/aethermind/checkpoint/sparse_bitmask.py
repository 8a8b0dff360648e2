"""Sparse matrices of compressed-tensors: the values that are not zero, and a bit for each place.

    sparse-24-bitmask   X.compressed [N, K / 2], two of every four values; X.bitmask uint8 [N, ⌈K / 8⌉], a bit for each
                        column, the lowest first; X.shape, N and K
    sparse-bitmask      the same with X.compressed as a vector, and X.row_offsets, which are not used

The dense matrix is X.weight, in the dtype of the values, which may be codes of a quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import QuantizedTensors
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["SPARSE_FORMATS", "SparseCheckpoint"]

Array = npt.NDArray[Any]

SPARSE_FORMATS = ("sparse-24-bitmask", "sparse-bitmask")
"""The formats that are read."""

_WEIGHT, _VALUES, _MASK, _SHAPE, _OFFSETS = ".weight", ".compressed", ".bitmask", ".shape", ".row_offsets"


class SparseCheckpoint(QuantizedTensors):
    """A checkpoint whose sparse matrices are dense tensors `X.weight`; implements `StoredTensors`. Immutable."""

    def __init__(self, stored: StoredTensors, where: str) -> None:
        """Check that the parts of each matrix fit together; `where` names the model in messages.

        CheckpointError: there is no sparse matrix, or a part of one is missing or does not fit.
        """
        self._stored = stored
        self._where = where
        self._names = frozenset(stored.names)
        modules = [name.removesuffix(_VALUES) for name in stored.names if name.endswith(_VALUES)]
        if not modules:
            raise CheckpointError(
                f"{where} says that it stores sparse weights, and has no tensor *{_VALUES}. Take sparsity_config out "
                "of config.json if its weights are stored dense."
            )
        self._infos = {f"{module}{_WEIGHT}": self._describe(module) for module in modules}
        parts = {f"{module}{end}" for module in modules for end in (_VALUES, _MASK, _SHAPE, _OFFSETS)}
        self._unquantised_names = tuple(name for name in stored.names if name not in parts)

    def array(self, name: str) -> Array | QuantizedWeight:
        """A tensor's values; CheckpointError for an unknown name, and for a mask of more or fewer values."""
        if name not in self._infos:
            return self._stored.array(name)
        module, info = name.removesuffix(_WEIGHT), self._infos[name]
        bits = np.unpackbits(self._part(module, _MASK), axis=1, count=info.shape[1], bitorder="little")
        is_stored, values = bits.view(np.bool_), self._part(module, _VALUES).reshape(-1)
        if (count := np.count_nonzero(is_stored)) != values.size:
            raise CheckpointError(
                f"{self._where} has {module}{_MASK} of {count} values, of which {values.size} are stored. Fetch the "
                "weights again."
            )
        dense = np.zeros(info.shape, values.dtype)
        dense[is_stored] = values
        return dense

    def _describe(self, module: str) -> TensorInfo:
        infos: Mapping[str, TensorInfo] = {
            end: self._stored.info(f"{module}{end}")
            for end in (_VALUES, _MASK, _SHAPE)
            if f"{module}{end}" in self._names
        }
        mask, values = infos.get(_MASK), infos[_VALUES]
        sizes = self._part(module, _SHAPE).reshape(-1).tolist() if _SHAPE in infos else []
        is_matrix = len(sizes) == 2 and all(isinstance(size, int) and 0 < size < 2**31 for size in sizes)
        if mask is not None and is_matrix and mask.dtype_name == "U8":
            rows, columns = sizes
            if mask.shape == (rows, -(-columns // 8)) and prod(values.shape) <= rows * columns:
                return replace(values, shape=(rows, columns), begin=0, end=rows * columns * values.dtype.itemsize)
        found = "nothing" if mask is None else f"{mask.dtype_name} {list(mask.shape)}"
        raise CheckpointError(
            f"{self._where} has {module}{_VALUES} {list(values.shape)} with {found} as mask of a matrix {sizes!r:.40}, "
            "which do not belong together. Fetch the weights again."
        )

    def _part(self, module: str, end: str) -> Array:
        array = self._stored.array(f"{module}{end}")
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)
