"""Rotary embedding: rope, rope_table, and the K-shift of cached keys (shift_keys).

A warp processes one head of a token or of a cache slot.
"""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, all_present, code_type, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _rope(call: Call) -> Iterator[Launch]:
    x, table = all_present(call.inputs)
    (out,) = call.outputs
    num_tokens, num_heads, head_dim = x.shape
    num_rows = num_tokens * num_heads
    arguments = (out, x, table, num_rows, num_heads, head_dim, table.shape[1], bool(call.attributes["interleaved"]))
    yield Launch("rope", f"rope_{x.dtype}", (div_up(num_rows, ROWS_PER_BLOCK), 1, 1), (THREADS, 1, 1), arguments)


def _rope_table(call: Call) -> Iterator[Launch]:
    positions, inv_freq = all_present(call.inputs)
    (table,) = call.outputs
    arguments = (table, positions, inv_freq, inv_freq.size, float(call.attributes["scale"]))
    threads = (threads_for(inv_freq.size, max_threads=128), 1, 1)
    yield Launch("rope_table", "rope_table", (positions.size, 1, 1), threads, arguments)


def _shift_keys(call: Call) -> Iterator[Launch]:
    k_cache, blocks, num_tokens, table = all_present(call.inputs)
    _, num_kv_heads, block_size, _ = k_cache.shape
    is_interleaved = bool(call.attributes["interleaved"])
    arguments = (k_cache, blocks, num_tokens, table, *k_cache.shape, table.shape[1], is_interleaved)
    grid = (blocks.size, div_up(num_kv_heads * block_size, ROWS_PER_BLOCK), 1)
    yield Launch("shift_keys", f"shift_keys_{k_cache.dtype}", grid, (THREADS, 1, 1), arguments)


def _shift_keys_quantized(call: Call) -> Iterator[Launch]:
    k_cache, blocks, num_tokens, table, k_scale = all_present(call.inputs)
    _, num_kv_heads, block_size, _ = k_cache.shape
    is_interleaved = bool(call.attributes["interleaved"])
    arguments = (
        k_cache,
        k_scale,
        blocks,
        num_tokens,
        table,
        *k_cache.shape,
        table.shape[1],
        is_interleaved,
        code_type(k_cache),
    )
    grid = (blocks.size, div_up(num_kv_heads * block_size, ROWS_PER_BLOCK), 1)
    yield Launch("shift_keys_quantized", "shift_keys_quantized", grid, (THREADS, 1, 1), arguments)


KERNELS = (
    cuda_kernel("rope", _rope, supports=supports_head_dim),
    cuda_kernel("rope_table", _rope_table),
    cuda_kernel("shift_keys", _shift_keys, supports=supports_head_dim),
    cuda_kernel("shift_keys_quantized", _shift_keys_quantized, supports=supports_head_dim),
)
