"""The GEMV of up to eight token-expert pairs a block, with quantised weights (csrc/common/expert_gemv.cuh)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._expert_products import (
    ExpertProduct,
    expert_call,
    gated_activation,
    moe_operator,
    num_output_tiles,
    pairs_of_few,
    pairs_per_row,
)
from aethermind_cuda.launch import DeviceArray, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = ["expert_gemv", "is_gemv_size", "is_vector_aligned"]

_MAX_PAIRS_PER_EXPERT = 16
"""With more pairs than this, tiles of 64 are faster."""
_WARP = 32
_MAX_WARPS = 8
_GROUPS_PER_WARP = 3
_SUMS_BYTES = 8 * 17 * 4
"""`PairSums` of a warp and a weight."""
_VECTOR_BYTES = 16


def is_gemv_size(ids: DeviceArray, num_experts: int, *, is_invariant: bool) -> bool:
    """Whether pairs are so few that the GEMV is faster than tiles of 64, or it has to be used for any number."""
    return is_invariant or ids.size <= num_experts * _MAX_PAIRS_PER_EXPERT


def is_vector_aligned(x: DeviceArray, weights: Sequence[DeviceArray]) -> bool:
    """Whether rows of inputs and weights can be read by 16 bytes."""
    is_whole = not x.shape[-1] * x.dtype.itemsize % _VECTOR_BYTES
    return is_whole and not any(array.address % _VECTOR_BYTES for array in (x, *weights))


def expert_gemv(
    source: str,
    kind: str,
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    workspace: int,
    activation: Mapping[str, Any] | None,
    *,
    num_groups: int,
    staged_bytes: int,
    layout: QuantizedLayout | None = None,
) -> Iterator[Launch]:
    """The launches of one product, or of gate and up with their gating, by the kernels of `csrc/<source>.cu`.

    `kind` is part of their names. A row has `num_groups` groups of inputs, and a warp has `staged_bytes` of a weight in
    its ring. `workspace` has the `sorting_bytes`. Sums have the same order for any number of pairs.
    """
    few, *sorts = pairs_of_few(ids, num_experts, workspace)
    yield from sorts
    warps = max(1, min(_MAX_WARPS, div_up(num_groups, _GROUPS_PER_WARP)))
    shared_bytes = warps * len(products) * (staged_bytes + _SUMS_BYTES)
    grid, block = (few.num_tiles, num_output_tiles(products[0].out.shape[-1]), 1), (warps * _WARP, 1, 1)
    arguments = expert_call(products, x, few, 0, pairs_per_row(x, ids), layout), gated_activation(activation)
    yield Launch(source, f"{moe_operator(activation)}_{kind}_{x.dtype}", grid, block, arguments, shared_bytes)
