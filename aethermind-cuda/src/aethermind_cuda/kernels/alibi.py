"""alibi: a block for the keys of each query."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    scores, slopes = call.inputs
    (out,) = call.outputs
    blocks = prod(out.shape[:-1]) if out.size else 0
    threads = threads_for(out.shape[-1], most=256)
    arguments = (out, scores, slopes, *out.shape[-3:])
    yield Launch("alibi", f"alibi_{out.dtype}", (blocks, 1, 1), (threads, 1, 1), arguments)


KERNELS = (cuda_kernel("alibi", _launches),)
