"""qkv_rope_cache_write: see `_qkv_rope_cache_write`."""

from __future__ import annotations

from aethermind_cuda.kernels._qkv_rope_cache_write import qkv_kernels

__all__ = ["KERNELS"]

KERNELS = qkv_kernels("qkv_rope_cache_write")
