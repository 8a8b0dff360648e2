"""How tensors of GGUF files whose values were rearranged by the converter are read as the checkpoint had them.

llama.cpp stores some tensors as its kernels use them: A of a state-space model instead of its logarithm, projections
with other orders of rows or columns, vectors as matrices. Each has a `GgufTransform` that undoes this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, one_level_format, without_super_blocks

__all__ = ["GgufTransform", "inverse_order"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GgufTransform:
    """How a tensor is read, in this order.

    Attributes:
        is_flat: it is read as a vector [n], of a stored matrix.
        rows: the stored rows in the order in which they are read; None for their own.
        columns: the same for columns; those of a block of a quantised tensor are neighbours.
        is_negative_exponential: stored are the values −exp(x) of the tensor x.
    """

    is_flat: bool = False
    rows: Sequence[int] | None = None
    columns: Sequence[int] | None = None
    is_negative_exponential: bool = False

    def info(self, stored: TensorInfo) -> TensorInfo:
        """Describe the tensor that is read of a `stored` one."""
        shape = (prod(stored.shape),) if self.is_flat else stored.shape
        weight_format = stored.weight_format
        if self.columns is not None and weight_format is not None and weight_format.super_block_size:
            weight_format = one_level_format(weight_format)
        return replace(stored, shape=shape, weight_format=weight_format)

    def apply(self, stored: Array | QuantizedWeight, name: str) -> Array | QuantizedWeight:
        """Return the tensor's values; CheckpointError with the `name` of a tensor whose sizes or values do not fit."""
        _check_order(self.rows, stored.shape[0], name)
        if self.columns is not None:
            _check_order(self.columns, stored.shape[1], name)
        if isinstance(stored, QuantizedWeight):
            weight = stored if self.rows is None else stored.take_rows(np.asarray(self.rows, np.int64))
            return weight if self.columns is None else _take_columns(weight, np.asarray(self.columns, np.int64), name)
        values = stored.reshape(-1) if self.is_flat else stored
        values = values if self.rows is None else values[np.asarray(self.rows, np.int64)]
        values = values if self.columns is None else values[:, np.asarray(self.columns, np.int64)]
        if not self.is_negative_exponential:
            return values
        if not (values < 0).all():
            raise CheckpointError(f"{name} has values that are not negative. Convert the model again.")
        logarithms: Array = np.log(-values)
        return logarithms


def inverse_order(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes another one: of rows that were taken in `order`."""
    return tuple(np.argsort(order).tolist())


def _check_order(order: Sequence[int] | None, count: int, name: str) -> None:
    if order is not None and len(order) != count:
        raise CheckpointError(
            f"{name} has {count} rows or columns where its metadata say {len(order)}. Convert the model again."
        )


def _take_columns(weight: QuantizedWeight, columns: npt.NDArray[np.int64], name: str) -> QuantizedWeight:
    """Take columns in an order that keeps blocks together. It may tear super-blocks, so that these are dissolved."""
    size = weight.format.block
    blocks = columns[::size] // size if size and len(columns) % size == 0 else np.arange(0)
    if not np.array_equal((blocks[:, None] * size + np.arange(size)).ravel(), columns):
        raise CheckpointError(
            f"{name} is quantised in blocks of {size} columns, which its converter took apart. Take a file of the "
            "model in F16 or BF16."
        )
    weight = without_super_blocks(weight) if weight.format.super_block_size else weight
    sides = (None if side is None else side[:, blocks] for side in (weight.scales, weight.zeros, weight.offsets))
    return QuantizedWeight(weight.format, weight.codes[:, columns], *sides)
