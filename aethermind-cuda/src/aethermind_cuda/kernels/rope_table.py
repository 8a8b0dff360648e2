"""rope_table: a block for each position."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.kernels._heads import given
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(call: Call) -> Iterator[Launch]:
    positions, inv_freq = given(call.inputs)
    (table,) = call.outputs
    arguments = (table, positions, inv_freq, inv_freq.size, float(call.attributes["scale"]))
    threads = (threads_for(inv_freq.size, most=128), 1, 1)
    yield Launch("rope_table", "rope_table", (positions.size, 1, 1), threads, arguments)


KERNELS = (cuda_kernel("rope_table", _launches),)
