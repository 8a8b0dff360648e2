"""paged_attention and paged_attention_quantized: see `_paged_attention` and `_triton_attention`."""

from __future__ import annotations

from aethermind_cuda.kernels._paged_attention import paged_attention_kernels
from aethermind_cuda.kernels._triton_attention import with_triton

__all__ = ["KERNELS"]

_TENSOR_CORES, _BY_ROW = paged_attention_kernels("paged_attention")

KERNELS = (
    with_triton(_TENSOR_CORES),
    _TENSOR_CORES,
    _BY_ROW,
    *paged_attention_kernels("paged_attention_quantized"),
)
