"""The kernels: for each operator calls of torch that every NPU has, and where torch_npu has one, a fused operator."""

from __future__ import annotations

from aethermind.dispatch import Kernel
from aethermind_cann.kernels import (
    add_low_rank,
    attention,
    collectives,
    elementwise,
    kv_cache,
    logits,
    matrix,
    norms,
    paged_attention,
    rotary,
    rows,
    sampling,
)

__all__ = ["load"]

_ROOMS = (
    *(elementwise, norms, matrix, add_low_rank, rotary, kv_cache, paged_attention, attention, rows, logits, sampling),
    collectives,
)


def load() -> list[Kernel]:
    """All of them; which fused ones are chosen depends on the torch_npu that is installed."""
    return [kernel for room in _ROOMS for kernel in room.KERNELS]
