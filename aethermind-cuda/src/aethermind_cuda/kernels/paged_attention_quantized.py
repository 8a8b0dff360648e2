"""paged_attention_quantized: see `_paged_attention`."""

from __future__ import annotations

from aethermind_cuda.kernels._paged_attention import paged_attention_kernels

__all__ = ["KERNELS"]

KERNELS = paged_attention_kernels("paged_attention_quantized")
