"""Products of token-expert pairs with weights in mxfp4.

A GEMV (csrc/moe_linear_mxfp4_gemv.cu), and on compute capability 9.0 tiles of many pairs by wgmma
(csrc/moe_linear_mxfp4.cu).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import MXFP4, WeightFormat
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
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["mxfp4_products", "takes_mxfp4_products"]

_CAPABILITY = 9, 0
_MAX_GEMV_PAIRS_PER_EXPERT = 6
"""With more pairs than this, tiles by wgmma are faster than a GEMV for each eight pairs (measured on an H200)."""
_TILES = ((8, 16), (20, 32), (44, 64))
"""Pairs of a tile by the most pairs per expert; with more, 128."""
_LARGEST_TILE = 128
_WARP = 32
_VECTOR_BYTES = 16
_GROUP_INPUTS = 128

_WGMMA_ROWS = 128
_WGMMA_THREADS = 256
_DEPTH = 64
"""Inputs of a step."""
_INPUT_STAGES = 4
_STAGED_BYTES = 1152
"""`StagedMxfp4` of csrc/common/mxfp4_wgmma.cuh."""
_CODE_STAGES = 3
_TILE_OUTPUTS = 16

_GEMV_STAGES = 3
_STAGED_TILE_BYTES = 1088
"""`StagedMxfp4Tile` of csrc/common/mxfp4_gemv.cuh."""


def takes_mxfp4_products(
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
    """Whether `mxfp4_products` computes products with [num_experts * num_outputs, K], and is the fastest."""
    return (
        format == MXFP4
        and x.dtype is not DType.FLOAT32
        and ids.size > 0
        and x.shape[-1] > 0
        and is_vector_aligned(x, weights)
        and (
            is_gemv_size(ids, num_experts, is_invariant=is_invariant)
            or _takes_wgmma(x, ids, num_outputs, num_experts, device)
        )
    )


def mxfp4_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    workspace: int,
    device: DeviceFacts,
    activation: Mapping[str, Any] | None = None,
    *,
    is_invariant: bool,
) -> Iterator[Launch]:
    """The launches of a product of x[T, K] or x[T, A, K], or, with an activation, of gate and up and their gating.

    The activation has the attributes of `moe_gate_up_silu`; the result is the `out` of the first product. `workspace`
    has the `sorting_bytes`. The GEMV sums in the same order for any number of pairs; with `is_invariant` no other
    kernel is used.
    """
    num_outputs, num_inputs = products[0].out.shape[-1], x.shape[-1]
    layout = QuantizedLayout(MXFP4, (num_experts * num_outputs, num_inputs))
    if not is_invariant and _takes_wgmma(x, ids, num_outputs, num_experts, device):
        per_expert = ids.size / num_experts
        tile_pairs = next((pairs for most, pairs in _TILES if per_expert <= most), _LARGEST_TILE)
        pairs, sort = sorted_pairs(ids, num_experts, tile_pairs, workspace)
        yield sort
        grid = div_up(num_outputs, _WGMMA_ROWS // len(products)), pairs.num_tiles, 1
        call = expert_call(products, x, pairs, tile_pairs, pairs_per_row(x, ids))
        code_pieces = layout.code_bytes // _VECTOR_BYTES
        shared_bytes = _INPUT_STAGES * tile_pairs * _DEPTH * x.dtype.itemsize
        shared_bytes += _WGMMA_THREADS // _WARP * _CODE_STAGES * _STAGED_BYTES
        entry, block = f"{moe_operator(activation)}_mxfp4_{tile_pairs}", (_WGMMA_THREADS, 1, 1)
        arguments = call, gated_activation(activation), code_pieces
        yield Launch("moe_linear_mxfp4", entry, grid, block, arguments, shared_bytes)
        return
    yield from expert_gemv(
        "moe_linear_mxfp4_gemv",
        "mxfp4_gemv",
        products,
        x,
        ids,
        num_experts,
        workspace,
        activation,
        num_groups=layout.num_groups,
        staged_bytes=_GEMV_STAGES * _STAGED_TILE_BYTES,
    )


def _takes_wgmma(x: DeviceArray, ids: DeviceArray, num_outputs: int, num_experts: int, device: DeviceFacts) -> bool:
    """Whether tiles by wgmma are the fastest. bfloat16 holds all elements times their scales; float16 does not."""
    return (
        device.compute_capability == _CAPABILITY
        and x.dtype is DType.BFLOAT16
        and ids.size > num_experts * _MAX_GEMV_PAIRS_PER_EXPERT
        and not x.shape[-1] % _DEPTH
        and not num_outputs % _TILE_OUTPUTS
    )
