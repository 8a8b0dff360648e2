"""kv_cache_write: a thread for each word of a key and of its value."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import given
from aethermind_cuda.launch import Call, Int64, Launch

__all__ = ["KERNELS"]

_THREADS = 256


def _launches(call: Call) -> Iterator[Launch]:
    k, v, slot_mapping, k_cache, v_cache = given(call.inputs)
    _, num_kv_heads, head_dim = k.shape
    row_bytes = head_dim * k.dtype.itemsize
    word = next(size for size in (16, 4, 2) if row_bytes % size == 0)
    num_words = k.nbytes // word
    arguments = (k_cache, v_cache, k, v, slot_mapping, Int64(num_words))
    shape = (num_kv_heads, k_cache.shape[2], row_bytes // word)
    grid = (div_up(num_words, _THREADS), 1, 1)
    yield Launch("kv_cache_write", f"kv_cache_write_word{8 * word}", grid, (_THREADS, 1, 1), (*arguments, *shape))


KERNELS = (cuda_kernel("kv_cache_write", _launches),)
