"""embedding: a block for each token."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_VECTOR_BYTES = 16


def _launches(call: Call) -> Iterator[Launch]:
    token_ids, table = call.inputs
    (out,) = call.outputs
    assert token_ids is not None
    assert table is not None
    num_rows, width = table.shape
    threads = threads_for(width * table.dtype.itemsize // _VECTOR_BYTES, most=256)
    arguments = (out, token_ids, table, num_rows, width)
    yield Launch("embedding", f"embedding_{table.dtype}", (token_ids.size, 1, 1), (threads, 1, 1), arguments)


KERNELS = (cuda_kernel("embedding", _launches),)
