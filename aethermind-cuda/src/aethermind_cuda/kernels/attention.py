"""attention: a block for each head of a query."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._heads import THREADS, given, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    q, k, v = given(call.inputs)
    (out,) = call.outputs
    num_queries, num_heads, head_dim = q.shape[-3:]
    num_keys, num_kv_heads = k.shape[-3:-1]
    shape = (num_queries, num_keys, num_heads, num_kv_heads, head_dim)
    arguments = (out, q, k, v, *shape, float(call.attributes["scale"]), bool(call.attributes["causal"]))
    grid = (q.size // max(1, num_heads * head_dim), num_heads, 1)
    yield Launch("attention", f"attention_{q.dtype}", grid, (THREADS, 1, 1), arguments)


KERNELS = (cuda_kernel("attention", _launches, supports=supports_head_dim),)
