"""Operators that only copy: gather and scatter of rows, permute, expand, slice and concatenate."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _gather_by_leading_indices(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """Gather rows for operators whose first input is the indices."""
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


def _transpose(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    put(outputs[0], inputs[0].transpose(-2, -1))


def _select(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], inputs[0][:, attributes["index"]])


def _concat(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.cat(list(inputs), 1, out=outputs[0])


def _slice_last(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], inputs[0].narrow(-1, attributes["begin"], attributes["size"]))


def _concat_last(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.cat(list(inputs), -1, out=outputs[0])


def _permute_heads(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    put(outputs[0], inputs[0].transpose(-3, -2))


def _permute(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], inputs[0].permute(attributes["dims"]))


def _expand(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    put(outputs[0], inputs[0].expand(outputs[0].shape))


KERNELS = [
    plain_kernel("embedding", _gather_by_leading_indices),
    plain_kernel("position_embedding", _gather_by_leading_indices),
    plain_kernel("gather_rows", _gather),
    plain_kernel("scatter_rows", _scatter_rows),
    plain_kernel("transpose", _transpose),
    plain_kernel("permute_heads", _permute_heads),
    plain_kernel("permute", _permute),
    plain_kernel("expand", _expand),
    plain_kernel("select", _select),
    plain_kernel("concat", _concat),
    plain_kernel("slice_last", _slice_last),
    plain_kernel("concat_last", _concat_last),
]
