"""The CANN kernels: torch calls, and torch_npu's fused operators where available. Operators without either are
decomposed.
"""

from __future__ import annotations

from aethermind.dispatch import Kernel
from aethermind_cann.kernels import (
    add_low_rank,
    attention,
    collectives,
    elementwise,
    kv_cache,
    latent_attention,
    logits,
    matrix,
    mixture,
    norms,
    packed_products,
    paged_attention,
    recurrent,
    reductions,
    rotary,
    routers,
    rows,
    sampling,
    short_convolution,
)

__all__ = ["load"]

_MODULES = (
    *(
        elementwise,
        reductions,
        norms,
        matrix,
        packed_products,
        add_low_rank,
        rotary,
        kv_cache,
        paged_attention,
        attention,
        rows,
    ),
    *(latent_attention, short_convolution, recurrent, routers, mixture, logits, sampling, collectives),
)


def load() -> list[Kernel]:
    """Return all kernels; the installed torch_npu determines which fused ones are supported."""
    return [kernel for module in _MODULES for kernel in module.KERNELS]
