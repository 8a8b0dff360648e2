"""Products of token-expert pairs with weights of 8 or 4 bits on compute capability 9.0, by wgmma
(csrc/moe_linear_quantized_wgmma.cu).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import FP8, MXFP4, WeightFormat
from aethermind_cuda.device_packing import format_family
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._expert_products import (
    ExpertProduct,
    expert_call,
    gated_activation,
    is_few_pairs,
    sorted_pairs,
)
from aethermind_cuda.kernels._quantized_gemv import staged_group_bytes
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["has_expert_wgmma", "quantized_expert_products", "takes_quantized_experts"]

_CAPABILITY = 9, 0
_FAMILIES = ("int4", "int4_zp", "int4_offset", "int8")
_COLUMNS = ((8, 16), (20, 32))
"""Pairs of a tile by the most pairs per expert; with more, 64."""
_LARGEST_TILE = 64
_TILE_OUTPUTS = 16
_GROUP_INPUTS = 128
_WORD_BYTES = 4
_WARP = 32
_MAX_INPUT_BYTES = 1 << 32


def has_expert_wgmma(format: WeightFormat) -> bool:
    """Whether kernels are compiled for a format."""
    return format not in (FP8, MXFP4) and format_family(format) in _FAMILIES


def takes_quantized_experts(
    format: WeightFormat | None,
    x: DeviceArray,
    ids: DeviceArray,
    num_outputs: int,
    num_experts: int,
    device: DeviceFacts,
) -> bool:
    """Whether `quantized_expert_products` computes products with [num_experts * num_outputs, K], and is the fastest
    without a copy of the weights.
    """
    return (
        format is not None
        and has_expert_wgmma(format)
        and device.compute_capability == _CAPABILITY
        and x.dtype is not DType.FLOAT32
        and not is_few_pairs(ids, num_experts)
        and x.shape[-1] > 0
        and not x.shape[-1] * x.dtype.itemsize % _WORD_BYTES
        and not x.address % _WORD_BYTES
        and x.nbytes < _MAX_INPUT_BYTES
        and not num_outputs % _TILE_OUTPUTS
    )


def quantized_expert_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    format: WeightFormat,
    workspace: int,
    activation: Mapping[str, Any] | None = None,
) -> Iterator[Launch]:
    """The launches of a product of x[T, K] or x[T, A, K], or, with an activation, of gate and up and their gating.

    The activation has the attributes of `moe_gate_up_silu`; the result is the `out` of the first product. `workspace`
    has the `sorting_bytes`. Weights are not rounded.
    """
    num_outputs, num_inputs = products[0].out.shape[-1], x.shape[-1]
    layout = QuantizedLayout(format, (num_experts * num_outputs, num_inputs))
    per_expert = ids.size / num_experts
    columns = next((pairs for most, pairs in _COLUMNS if per_expert <= most), _LARGEST_TILE)
    pairs, sort = sorted_pairs(ids, num_experts, columns, workspace)
    yield sort
    warps = 16 if columns == _LARGEST_TILE else 8
    grid = div_up(num_outputs, warps * _TILE_OUTPUTS // len(products)), pairs.num_tiles, 1
    call = expert_call(products, x, pairs, columns, ids.shape[1] if len(x.shape) == 2 else 1, layout)
    stages = 3 if format.bits == 8 else 4
    stage_bytes = columns * _GROUP_INPUTS * x.dtype.itemsize + warps * staged_group_bytes(format)
    shared_bytes = stages * stage_bytes + columns * _WORD_BYTES
    operator = "moe_gate_up_silu" if activation else "moe_linear"
    entry = f"{operator}_quantized_wgmma{columns}_{format_family(format)}_{x.dtype}"
    arguments = call, gated_activation(activation)
    yield Launch("moe_linear_quantized_wgmma", entry, grid, (warps * _WARP, 1, 1), arguments, shared_bytes)
