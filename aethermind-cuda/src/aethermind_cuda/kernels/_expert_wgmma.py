"""Products of many choices with unquantised weights on compute capability 9.0, by wgmma (csrc/moe_linear_wgmma.cu)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._expert_products import ExpertProduct, expert_call, sorted_choices
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch

__all__ = ["takes_wgmma", "wgmma_expert_products"]

_CAPABILITY = 9, 0
_MIN_CHOICES_PER_EXPERT = 3
"""Beyond so many choices for each expert, tiles of up to 128 choices are faster than those of 8."""
_TILE_CHOICES = 128
_TILE_ROWS = 128
_THREADS = 256
_DEPTH = 64
"""Inputs of a step."""
_VECTOR_BYTES = 16
_SHARED_BYTES = 3 * (_TILE_ROWS + _TILE_CHOICES) * _DEPTH * 2


class _GatedActivation(ctypes.Structure):
    """`GatedActivation` of csrc/common/expert_wgmma.cuh."""

    _fields_ = [(name, ctypes.c_float) for name in ("alpha", "limit", "up_offset")]


def takes_wgmma(
    products: Sequence[ExpertProduct], x: DeviceArray, ids: DeviceArray, num_experts: int, device: DeviceFacts
) -> bool:
    """Whether `wgmma_expert_products` computes a call, and is the fastest that does."""
    return (
        device.compute_capability == _CAPABILITY
        and x.dtype is not DType.FLOAT32
        and ids.size > num_experts * _MIN_CHOICES_PER_EXPERT
        and x.shape[-1] > 0
        and not x.shape[-1] % _DEPTH
        and not products[0].out.shape[-1] % 2
        and not any(array.address % _VECTOR_BYTES for array in (x, *(product.weight for product in products)))
    )


def wgmma_expert_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    workspace: int,
    activation: Mapping[str, Any] | None = None,
) -> Iterator[Launch]:
    """The launches of a product of x[T, K] or x[T, A, K], or, with an activation, of gate and up and their gating.

    The activation has the attributes of `moe_gate_up_silu`; the result is the `out` of the first product.
    """
    choices, sort = sorted_choices(ids, num_experts, _TILE_CHOICES, workspace)
    yield sort
    call = expert_call(products, x, choices, _TILE_CHOICES, ids.shape[1] if len(x.shape) == 2 else 1)
    values = [float((activation or {}).get(field[0], 0.0)) for field in _GatedActivation._fields_]
    entry, tile_outputs = ("moe_gate_up_silu", _TILE_ROWS // 2) if activation else ("moe_linear", _TILE_ROWS)
    grid = div_up(products[0].out.shape[-1], tile_outputs), choices.num_tiles, 1
    arguments = call, _GatedActivation(*values)
    yield Launch("moe_linear_wgmma", f"{entry}_wgmma_{x.dtype}", grid, (_THREADS, 1, 1), arguments, _SHARED_BYTES)
