"""The CANN kernels: portable torch calls for every operator, and torch_npu's fused operators where available."""

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
    mixture,
    norms,
    paged_attention,
    reductions,
    rotary,
    routers,
    rows,
    sampling,
)

__all__ = ["load"]

_MODULES = (
    *(elementwise, reductions, norms, matrix, add_low_rank, rotary, kv_cache, paged_attention, attention, rows),
    *(routers, mixture, logits, sampling, collectives),
)


def load() -> list[Kernel]:
    """All kernels; the installed torch_npu determines which fused ones are supported."""
    return [kernel for module in _MODULES for kernel in module.KERNELS]
