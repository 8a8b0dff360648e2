"""kv_cache_write and kv_cache_write_quantized: the keys and values of a step go to their slots of the paged cache; and
latent_cache_write, whose cache has no values of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, all_present, code_type, supports_head_dim
from aethermind_cuda.launch import Call, DeviceArray, Int64, Launch

__all__ = ["KERNELS"]

_COPY_THREADS = 256


def _copy(call: Call) -> Iterator[Launch]:
    k, v, slot_mapping, k_cache, v_cache = all_present(call.inputs)
    yield _copy_launch(k, v, slot_mapping, k_cache, v_cache)


def _copy_latent(call: Call) -> Iterator[Launch]:
    k, slot_mapping, k_cache = all_present(call.inputs)
    yield _copy_launch(k, None, slot_mapping, k_cache, None)


def _copy_launch(
    k: DeviceArray, v: DeviceArray | None, slot_mapping: DeviceArray, k_cache: DeviceArray, v_cache: DeviceArray | None
) -> Launch:
    """A thread copies one word of a key and of its value."""
    _, num_kv_heads, head_dim = k.shape
    row_bytes = head_dim * k.dtype.itemsize
    word = next(size for size in (16, 4, 2) if row_bytes % size == 0)
    num_words = k.nbytes // word
    arguments = (k_cache, v_cache, k, v, slot_mapping, Int64(num_words))
    shape = (num_kv_heads, k_cache.shape[2], row_bytes // word)
    grid = (div_up(num_words, _COPY_THREADS), 1, 1)
    return Launch("kv_cache_write", f"kv_cache_write_word{8 * word}", grid, (_COPY_THREADS, 1, 1), (*arguments, *shape))


def _quantize(call: Call) -> Iterator[Launch]:
    """A warp quantises one head of a token; blockIdx.y is 0 for keys, 1 for values."""
    k, v, slot_mapping, k_cache, v_cache, k_scale, v_scale = all_present(call.inputs)
    num_tokens, num_kv_heads, head_dim = k.shape
    num_rows = num_tokens * num_kv_heads
    outputs = (k_cache, v_cache, k_scale, v_scale)
    shape = (num_rows, num_kv_heads, k_cache.shape[2], head_dim)
    arguments = (*outputs, k, v, slot_mapping, *shape, code_type(k_cache))
    grid = (div_up(num_rows, ROWS_PER_BLOCK), 2, 1)
    name = "kv_cache_write_quantized"
    yield Launch(name, f"{name}_{k.dtype}", grid, (THREADS, 1, 1), arguments)


KERNELS = (
    cuda_kernel("kv_cache_write", _copy),
    cuda_kernel("latent_cache_write", _copy_latent),
    cuda_kernel("kv_cache_write_quantized", _quantize, supports=supports_head_dim),
)
