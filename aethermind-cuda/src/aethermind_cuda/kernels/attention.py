"""attention over contiguous keys and values, and the position bias alibi."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.kernels._heads import THREADS, all_present, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _attention(call: Call) -> Iterator[Launch]:
    """A block computes one head of a query."""
    q, k, v = all_present(call.inputs)
    (out,) = call.outputs
    num_queries, num_heads, head_dim = q.shape[-3:]
    num_keys, num_kv_heads = k.shape[-3:-1]
    shape = (num_queries, num_keys, num_heads, num_kv_heads, head_dim)
    arguments = (out, q, k, v, *shape, float(call.attributes["scale"]), bool(call.attributes["causal"]))
    grid = (q.size // max(1, num_heads * head_dim), num_heads, 1)
    yield Launch("attention", f"attention_{q.dtype}", grid, (THREADS, 1, 1), arguments)


def _alibi(call: Call) -> Iterator[Launch]:
    """A block adds the bias of the keys of one query."""
    scores, slopes = call.inputs
    (out,) = call.outputs
    blocks = prod(out.shape[:-1]) if out.size else 0
    threads = threads_for(out.shape[-1], max_threads=256)
    arguments = (out, scores, slopes, *out.shape[-3:])
    yield Launch("alibi", f"alibi_{out.dtype}", (blocks, 1, 1), (threads, 1, 1), arguments)


KERNELS = (cuda_kernel("attention", _attention, supports=supports_head_dim), cuda_kernel("alibi", _alibi))
