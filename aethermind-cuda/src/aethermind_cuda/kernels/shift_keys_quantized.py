"""shift_keys_quantized: a warp for each head of a slot, whose codes it turns in place."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, code_type, given, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    k_cache, blocks, num_tokens, table, k_scale = given(call.inputs)
    _, num_kv_heads, block_size, _ = k_cache.shape
    is_interleaved = bool(call.attributes["interleaved"])
    arguments = (k_cache, k_scale, blocks, num_tokens, table, *k_cache.shape, is_interleaved, code_type(k_cache))
    grid = (blocks.size, div_up(num_kv_heads * block_size, ROWS_PER_BLOCK), 1)
    yield Launch("shift_keys_quantized", "shift_keys_quantized", grid, (THREADS, 1, 1), arguments)


KERNELS = (cuda_kernel("shift_keys_quantized", _launches, supports=supports_head_dim),)
