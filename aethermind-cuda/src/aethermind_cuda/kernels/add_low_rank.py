"""add_low_rank (LoRA): a block computes some columns of a row."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_COLUMNS_PER_THREAD = 4


def _add_low_rank(call: Call) -> Iterator[Launch]:
    y, x, down, up, cu_ranks, adapters = call.inputs
    (out,) = call.outputs
    assert x is not None
    assert cu_ranks is not None
    num_rows, num_outputs = out.shape
    threads = threads_for(div_up(num_outputs, _COLUMNS_PER_THREAD), max_threads=256)
    grid = (num_rows, div_up(num_outputs, threads * _COLUMNS_PER_THREAD), 1)
    sizes = (x.shape[1], num_outputs, cu_ranks.size - 1)
    arguments = (out, y, x, down, up, cu_ranks, adapters, *sizes)
    yield Launch("add_low_rank", f"add_low_rank_{out.dtype}", grid, (threads, 1, 1), arguments)


KERNELS = (cuda_kernel("add_low_rank", _add_low_rank),)
