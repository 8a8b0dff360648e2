"""shift_keys: a warp for each head of a slot, whose key it turns in place."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, given, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    k_cache, blocks, num_tokens, table = given(call.inputs)
    _, num_kv_heads, block_size, _ = k_cache.shape
    is_interleaved = bool(call.attributes["interleaved"])
    arguments = (k_cache, blocks, num_tokens, table, *k_cache.shape, is_interleaved)
    grid = (blocks.size, div_up(num_kv_heads * block_size, ROWS_PER_BLOCK), 1)
    yield Launch("shift_keys", f"shift_keys_{k_cache.dtype}", grid, (THREADS, 1, 1), arguments)


KERNELS = (cuda_kernel("shift_keys", _launches, supports=supports_head_dim),)
