"""rms_norm: a block for each row."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_VECTOR_BYTES = 16


def _launches(call: Call) -> Iterator[Launch]:
    x, weight = call.inputs
    (out,) = call.outputs
    assert x is not None
    width = x.shape[-1]
    rows = x.size // max(1, width)
    threads = threads_for(width * x.dtype.itemsize // _VECTOR_BYTES)
    arguments = (out, x, weight, width, float(call.attributes["eps"]))
    yield Launch("rms_norm", f"rms_norm_{x.dtype}", (rows, 1, 1), (threads, 1, 1), arguments)


KERNELS = (cuda_kernel("rms_norm", _launches),)
