"""Products of many token-expert pairs on compute capability 9.0, by wgmma (csrc/moe_linear_wgmma.cu).

Quantised weights are first dequantised to the workspace, some experts at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.ops.weight_format import FP8, MXFP4, WeightFormat
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._dequantize import dequantize_weight
from aethermind_cuda.kernels._expert_products import (
    ExpertProduct,
    expert_call,
    gated_activation,
    moe_operator,
    pairs_per_row,
    sorted_pairs,
)
from aethermind_cuda.kernels._quantized_experts import has_expert_kernels
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["dequantized_expert_bytes", "is_dequantized", "takes_wgmma", "wgmma_expert_products"]

_CAPABILITY = 9, 0
_MIN_PAIRS_PER_EXPERT = 3
"""With more pairs per expert than this, tiles of up to 128 pairs are faster than tiles of 8."""
_MIN_PAIRS_PER_QUANTIZED_EXPERT = 192
_MIN_PAIRS_PER_EXPERT_OF_OTHERS = 48
"""With more pairs per expert than this, dequantising the weights first is faster than multiplying codes; others are the
formats without kernels that multiply codes by wgmma."""
_MAX_DEQUANTIZED_BYTES = 160 << 20
_TILE_OUTPUTS = 16
_ALIGNMENT = 256
_TILE_PAIRS = 128
_TILE_ROWS = 128
_THREADS = 256
_DEPTH = 64
"""Inputs of a step."""
_VECTOR_BYTES = 16
_SHARED_BYTES = 3 * (_TILE_ROWS + _TILE_PAIRS) * _DEPTH * 2


class _ExpertRange(ctypes.Structure):
    """`ExpertRange` of csrc/common/expert_wgmma.cuh."""

    _fields_ = [(name, ctypes.c_int) for name in ("first", "count")]


def is_dequantized(format: WeightFormat) -> bool:
    """Whether weights in a format may be dequantised, which rounds them to the dtype of the inputs."""
    return format not in (FP8, MXFP4)


def takes_wgmma(
    x: DeviceArray,
    ids: DeviceArray,
    num_outputs: int,
    num_experts: int,
    format: WeightFormat | None,
    weights: Sequence[DeviceArray],
    device: DeviceFacts,
) -> bool:
    """Whether `wgmma_expert_products` computes products with [num_experts * num_outputs, K], and is the fastest."""
    return (
        device.compute_capability == _CAPABILITY
        and (format is None or is_dequantized(format))
        and x.dtype is not DType.FLOAT32
        and ids.size > num_experts * _min_pairs_per_expert(format)
        and x.shape[-1] > 0
        and not x.shape[-1] % _DEPTH
        and not num_outputs % (2 if format is None else _TILE_OUTPUTS)
        and not any(array.address % _VECTOR_BYTES for array in (x, *weights))
    )


def dequantized_expert_bytes(shape: tuple[int, int], num_experts: int, num_weights: int, dtype: DType) -> int:
    """The workspace of `wgmma_expert_products` for quantised stacks [num_experts * N, K], beside the sorted pairs."""
    experts = _experts_at_once(shape, num_experts, num_weights, dtype)
    return num_weights * align_up(experts * _expert_bytes(shape, num_experts, dtype), _ALIGNMENT)


def wgmma_expert_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    format: WeightFormat | None,
    workspace: int,
    activation: Mapping[str, Any] | None = None,
) -> Iterator[Launch]:
    """The launches of a product of x[T, K] or x[T, A, K], or, with an activation, of gate and up and their gating.

    The activation has the attributes of `moe_gate_up_silu`; the result is the `out` of the first product.
    `workspace` has `dequantized_expert_bytes` for quantised weights, then the `sorting_bytes`.
    """
    num_outputs, num_inputs = products[0].out.shape[-1], x.shape[-1]
    shape, weight_bytes = (num_experts * num_outputs, num_inputs), 0
    at_once = num_experts
    if format is not None:
        at_once = _experts_at_once(shape, num_experts, len(products), x.dtype)
        weight_bytes = dequantized_expert_bytes(shape, num_experts, len(products), x.dtype) // len(products)
    pairs, sort = sorted_pairs(ids, num_experts, _TILE_PAIRS, workspace + len(products) * weight_bytes)
    yield sort
    grid = div_up(num_outputs, _TILE_ROWS // len(products)), pairs.num_tiles, 1
    operator = moe_operator(activation)
    for first in range(0, num_experts, at_once):
        count = min(at_once, num_experts - first)
        if format is not None:
            layout = QuantizedLayout(format, shape)
            scales = layout.num_blocks, layout.log2_chunks, layout.affine_term
            rows = count * num_outputs, num_inputs
            floats = [DeviceArray(workspace + i * weight_bytes, x.dtype, rows) for i in range(len(products))]
            for product, part in zip(products, floats, strict=True):
                yield dequantize_weight(f"int{format.bits}", shape, part, product.weight, first * num_outputs, scales)
            parts = [product._replace(weight=part) for product, part in zip(products, floats, strict=True)]
        else:
            parts = list(products)
        call = expert_call(parts, x, pairs, _TILE_PAIRS, pairs_per_row(x, ids))
        arguments = call, gated_activation(activation), _ExpertRange(first, count)
        yield Launch(
            "moe_linear_wgmma", f"{operator}_wgmma_{x.dtype}", grid, (_THREADS, 1, 1), arguments, _SHARED_BYTES
        )


def _min_pairs_per_expert(format: WeightFormat | None) -> int:
    if format is None:
        return _MIN_PAIRS_PER_EXPERT
    return _MIN_PAIRS_PER_QUANTIZED_EXPERT if has_expert_kernels(format) else _MIN_PAIRS_PER_EXPERT_OF_OTHERS


def _expert_bytes(shape: tuple[int, int], num_experts: int, dtype: DType) -> int:
    rows, columns = shape
    return rows // num_experts * columns * dtype.itemsize


def _experts_at_once(shape: tuple[int, int], num_experts: int, num_weights: int, dtype: DType) -> int:
    """Experts that are dequantised at a time: the fewest equal parts within the limit of memory."""
    max_experts = max(1, _MAX_DEQUANTIZED_BYTES // (num_weights * max(1, _expert_bytes(shape, num_experts, dtype))))
    return div_up(num_experts, div_up(num_experts, max_experts))
