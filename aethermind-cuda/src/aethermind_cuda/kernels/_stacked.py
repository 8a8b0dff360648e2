"""One product for several weights that are adjacent in memory, as the core places those of one kernel call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from aethermind_cuda.cublas import WORKSPACE_BYTES
from aethermind_cuda.kernels._dense_wgmma import dense_wgmma
from aethermind_cuda.kernels.linear import dense_product
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Work

__all__ = ["stacked_product", "stacked_product_bytes"]


def stacked_product(
    x: DeviceArray,
    weights: Sequence[DeviceArray],
    biases: Sequence[DeviceArray | None],
    workspace: int,
    device: DeviceFacts,
) -> tuple[Work, DeviceArray] | None:
    """x · weightᵀ + bias for the rows of all weights; None where the weights or biases are not adjacent.

    The result [T, N], which comes second, is in the workspace (of `stacked_product_bytes`), after cuBLASLt's own part.
    """
    weight, given = _stacked(weights), [bias for bias in biases if bias is not None]
    bias = _stacked(given) if len(given) == len(weights) else None
    if weight is None or (given and bias is None):
        return None
    out = DeviceArray(workspace + WORKSPACE_BYTES, x.dtype, (x.shape[0], weight.shape[0]))
    return dense_wgmma(out, x, [weight], bias, device) or dense_product(out, x, weight, bias, workspace), out


def stacked_product_bytes(x: DeviceArray, weights: Sequence[DeviceArray]) -> int:
    """The workspace of the product, including its result."""
    return WORKSPACE_BYTES + x.shape[0] * sum(weight.shape[0] for weight in weights) * x.dtype.itemsize


def _stacked(arrays: Sequence[DeviceArray]) -> DeviceArray | None:
    """One array of all rows; None if they are not adjacent."""
    if not arrays or not all(first.is_followed_by(second) for first, second in pairwise(arrays)):
        return None
    num_rows = sum(array.shape[0] for array in arrays)
    return arrays[0]._replace(shape=(num_rows, *arrays[0].shape[1:]))
