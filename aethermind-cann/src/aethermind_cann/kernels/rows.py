"""Row gather and scatter."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _rows_by_index(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """A kernel of operators that take the indices first."""
    indices, table = inputs
    _gather((table, indices), outputs, _)


def _gather(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    table, indices = inputs
    if table.dtype == outputs[0].dtype:
        torch.index_select(table, 0, indices, out=outputs[0])
    else:
        put(outputs[0], table.index_select(0, indices))


def _scatter_rows(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, values, rows = inputs
    put(outputs[0], x)
    outputs[0].index_copy_(0, rows.long(), values)


KERNELS = [
    plain_kernel("embedding", _rows_by_index),
    plain_kernel("position_embedding", _rows_by_index),
    plain_kernel("gather_rows", _gather),
    plain_kernel("scatter_rows", _scatter_rows),
]
