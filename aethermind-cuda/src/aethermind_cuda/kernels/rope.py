"""rope: a warp for each head of a token."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import ROWS_PER_BLOCK, THREADS, given, supports_head_dim
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    x, table = given(call.inputs)
    (out,) = call.outputs
    num_tokens, num_heads, head_dim = x.shape
    num_rows = num_tokens * num_heads
    arguments = (out, x, table, num_rows, num_heads, head_dim, bool(call.attributes["interleaved"]))
    yield Launch("rope", f"rope_{x.dtype}", (div_up(num_rows, ROWS_PER_BLOCK), 1, 1), (THREADS, 1, 1), arguments)


KERNELS = (cuda_kernel("rope", _launches, supports=supports_head_dim),)
