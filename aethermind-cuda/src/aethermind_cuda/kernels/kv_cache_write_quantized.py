"""kv_cache_write_quantized: a warp for each head of a token, of its key and of its value."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, code_type, given, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    k, v, slot_mapping, k_cache, v_cache, k_scale, v_scale = given(call.inputs)
    num_tokens, num_kv_heads, head_dim = k.shape
    num_rows = num_tokens * num_kv_heads
    outputs = (k_cache, v_cache, k_scale, v_scale)
    shape = (num_rows, num_kv_heads, k_cache.shape[2], head_dim)
    arguments = (*outputs, k, v, slot_mapping, *shape, code_type(k_cache))
    grid = (div_up(num_rows, ROWS_PER_BLOCK), 2, 1)
    name = "kv_cache_write_quantized"
    yield Launch(name, f"{name}_{k.dtype}", grid, (THREADS, 1, 1), arguments)


KERNELS = (cuda_kernel("kv_cache_write_quantized", _launches, supports=supports_head_dim),)
