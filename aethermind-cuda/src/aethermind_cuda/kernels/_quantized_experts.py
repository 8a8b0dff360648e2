"""Products of token-expert pairs with weights of 8 or 4 bits, without a copy of the weights.

A GEMV (csrc/moe_linear_quantized_gemv.cu), and on compute capability 9.0 tiles of sorted pairs by wgmma
(csrc/moe_linear_quantized_wgmma.cu).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import FP8, MXFP4, WeightFormat
from aethermind_cuda.device_packing import format_family
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._expert_gemv import expert_gemv, is_gemv_size, is_vector_aligned
from aethermind_cuda.kernels._expert_products import (
    ExpertProduct,
    expert_call,
    gated_activation,
    moe_operator,
    pairs_per_row,
    sorted_pairs,
)
from aethermind_cuda.kernels._quantized_gemv import staged_group_bytes
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["has_expert_kernels", "quantized_expert_products", "takes_quantized_experts"]

_CAPABILITY = 9, 0
_FAMILIES = ("int4", "int4_zp", "int4_offset", "int8")
_MAX_GEMV_PAIRS_PER_EXPERT = 0.5
"""With more pairs than this, tiles by wgmma are faster than a GEMV for each eight pairs (measured on an H200)."""
_COLUMNS = ((8, 16), (20, 32))
"""Pairs of a tile by the most pairs per expert; with more, 64."""
_LARGEST_TILE = 64
_TILE_OUTPUTS = 16
_GROUP_INPUTS = 128
_WORD_BYTES = 4
_WARP = 32
_MAX_INPUT_BYTES = 1 << 32
_MAX_LONG_GROUP_BITS = 8


def has_expert_kernels(format: WeightFormat | None) -> bool:
    """Whether kernels are compiled for a format."""
    return format not in (None, FP8, MXFP4) and format_family(format) in _FAMILIES


def takes_quantized_experts(
    format: WeightFormat | None,
    x: DeviceArray,
    ids: DeviceArray,
    num_outputs: int,
    num_experts: int,
    weights: Sequence[DeviceArray],
    device: DeviceFacts,
    *,
    is_invariant: bool,
) -> bool:
    """Whether `quantized_expert_products` computes products with [num_experts * num_outputs, K], and is the fastest
    without a copy of the weights.
    """
    is_gemv = is_gemv_size(ids, num_experts, is_invariant=is_invariant) and is_vector_aligned(x, weights)
    return (
        has_expert_kernels(format)
        and x.dtype is not DType.FLOAT32
        and ids.size > 0
        and x.shape[-1] > 0
        and (is_gemv or (not is_invariant and _takes_wgmma(x, ids, num_outputs, num_experts, device)))
    )


def quantized_expert_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    format: WeightFormat,
    workspace: int,
    device: DeviceFacts,
    activation: Mapping[str, Any] | None = None,
    *,
    is_invariant: bool,
) -> Iterator[Launch]:
    """The launches of a product of x[T, K] or x[T, A, K], or, with an activation, of gate and up and their gating.

    The activation has the attributes of `moe_gate_up_silu`; the result is the `out` of the first product. `workspace`
    has the `sorting_bytes`. Weights are not rounded. The GEMV sums in the same order for any number of pairs; with
    `is_invariant` no other kernel is used.
    """
    num_outputs, num_inputs = products[0].out.shape[-1], x.shape[-1]
    layout = QuantizedLayout(format, (num_experts * num_outputs, num_inputs))
    family = format_family(format)
    if is_invariant or not _takes_wgmma(x, ids, num_outputs, num_experts, device):
        stages = 3 if format.bits * len(products) <= _MAX_LONG_GROUP_BITS else 2
        yield from expert_gemv(
            "moe_linear_quantized_gemv",
            f"quantized_gemv_{family}",
            products,
            x,
            ids,
            num_experts,
            workspace,
            activation,
            num_groups=layout.num_groups,
            staged_bytes=stages * staged_group_bytes(format),
            layout=layout,
        )
        return
    per_expert = ids.size / num_experts
    columns = next((pairs for most, pairs in _COLUMNS if per_expert <= most), _LARGEST_TILE)
    pairs, sort = sorted_pairs(ids, num_experts, columns, workspace)
    yield sort
    warps = 16 if columns == _LARGEST_TILE else 8
    grid = div_up(num_outputs, warps * _TILE_OUTPUTS // len(products)), pairs.num_tiles, 1
    call = expert_call(products, x, pairs, columns, pairs_per_row(x, ids), layout)
    stages = 3 if format.bits == 8 else 4
    stage_bytes = columns * _GROUP_INPUTS * x.dtype.itemsize + warps * staged_group_bytes(format)
    shared_bytes = stages * stage_bytes + columns * _WORD_BYTES
    entry, block = f"{moe_operator(activation)}_quantized_wgmma{columns}_{family}_{x.dtype}", (warps * _WARP, 1, 1)
    arguments = call, gated_activation(activation)
    yield Launch("moe_linear_quantized_wgmma", entry, grid, block, arguments, shared_bytes)


def _takes_wgmma(x: DeviceArray, ids: DeviceArray, num_outputs: int, num_experts: int, device: DeviceFacts) -> bool:
    return (
        device.compute_capability == _CAPABILITY
        and ids.size > num_experts * _MAX_GEMV_PAIRS_PER_EXPERT
        and not (x.address | x.shape[-1] * x.dtype.itemsize) % _WORD_BYTES
        and x.nbytes < _MAX_INPUT_BYTES
        and not num_outputs % _TILE_OUTPUTS
    )
