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
from aethermind_cuda.kernels._expert_products import (
    ExpertProduct,
    expert_call,
    gated_activation,
    is_few_pairs,
    num_output_tiles,
    pairs_of_few,
    sorted_pairs,
)
from aethermind_cuda.kernels._quantized_gemv import staged_group_bytes
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["has_expert_kernels", "quantized_expert_products", "takes_quantized_experts"]

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
_MAX_GEMV_PAIRS_PER_EXPERT = 16
"""With more pairs than this, tiles of 64 are faster than a GEMV."""
_VECTOR_BYTES = 16
_MAX_WARPS = 8
_GROUPS_PER_WARP = 3
_MAX_LONG_GROUP_BITS = 8
_SUMS_BYTES = 8 * 17 * 4


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
    is_few = is_invariant or ids.size <= num_experts * _MAX_GEMV_PAIRS_PER_EXPERT
    is_aligned = not any(array.address % _VECTOR_BYTES for array in (x, *weights))
    is_gemv = is_few and is_aligned and not x.shape[-1] * x.dtype.itemsize % _VECTOR_BYTES
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
    operator, family = "moe_gate_up_silu" if activation else "moe_linear", format_family(format)
    pairs_per_row, gating = ids.shape[1] if len(x.shape) == 2 else 1, gated_activation(activation)
    if is_invariant or not _takes_wgmma(x, ids, num_outputs, num_experts, device):
        few, *sorts = pairs_of_few(ids, num_experts, workspace)
        yield from sorts
        warps = max(1, min(_MAX_WARPS, div_up(layout.num_groups, _GROUPS_PER_WARP)))
        stages = 3 if format.bits * len(products) <= _MAX_LONG_GROUP_BITS else 2
        shared_bytes = warps * len(products) * (stages * staged_group_bytes(format) + _SUMS_BYTES)
        grid, block = (few.num_tiles, num_output_tiles(num_outputs), 1), (warps * _WARP, 1, 1)
        call = expert_call(products, x, few, 0, pairs_per_row, layout)
        entry = f"{operator}_quantized_gemv_{family}_{x.dtype}"
        yield Launch("moe_linear_quantized_gemv", entry, grid, block, (call, gating), shared_bytes)
        return
    per_expert = ids.size / num_experts
    columns = next((pairs for most, pairs in _COLUMNS if per_expert <= most), _LARGEST_TILE)
    pairs, sort = sorted_pairs(ids, num_experts, columns, workspace)
    yield sort
    warps = 16 if columns == _LARGEST_TILE else 8
    grid = div_up(num_outputs, warps * _TILE_OUTPUTS // len(products)), pairs.num_tiles, 1
    call = expert_call(products, x, pairs, columns, pairs_per_row, layout)
    stages = 3 if format.bits == 8 else 4
    stage_bytes = columns * _GROUP_INPUTS * x.dtype.itemsize + warps * staged_group_bytes(format)
    shared_bytes = stages * stage_bytes + columns * _WORD_BYTES
    entry = f"{operator}_quantized_wgmma{columns}_{family}_{x.dtype}"
    yield Launch("moe_linear_quantized_wgmma", entry, grid, (warps * _WARP, 1, 1), (call, gating), shared_bytes)


def _takes_wgmma(x: DeviceArray, ids: DeviceArray, num_outputs: int, num_experts: int, device: DeviceFacts) -> bool:
    return (
        device.allows_experimental
        and device.compute_capability == _CAPABILITY
        and not is_few_pairs(ids, num_experts)
        and not (x.address | x.shape[-1] * x.dtype.itemsize) % _WORD_BYTES
        and x.nbytes < _MAX_INPUT_BYTES
        and not num_outputs % _TILE_OUTPUTS
    )
