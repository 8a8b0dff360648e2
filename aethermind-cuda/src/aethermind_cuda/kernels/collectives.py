"""Operators of tensor parallelism: NCCL collectives, and the selection of a rank's own heads.

NCCL concatenates rows while ranks hold columns, so parts are transposed, gathered and transposed back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aethermind.dispatch import Signature
from aethermind.hal.memory import align_up
from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels.rows import permute_heads, transpose
from aethermind_cuda.launch import Call, DeviceArray, Enqueue, LaunchBinder, Work
from aethermind_cuda.nccl import find_nccl

__all__ = ["KERNELS"]

_ALIGNMENT = 256


class AllReduce(NamedTuple):
    """out = the sum of every rank's x."""

    out: DeviceArray
    x: DeviceArray

    def bind(self, binder: LaunchBinder) -> Enqueue:
        """See `launch.Work`."""
        return binder.collectives.bind_all_reduce(self.out, self.x)


class AllGather(NamedTuple):
    """out = the parts of all ranks, concatenated along the first axis."""

    out: DeviceArray
    part: DeviceArray

    def bind(self, binder: LaunchBinder) -> Enqueue:
        """See `launch.Work`."""
        return binder.collectives.bind_all_gather(self.out, self.part)


def _all_reduce(call: Call) -> Iterator[Work]:
    (x,), (out,) = call.inputs, call.outputs
    assert x is not None
    yield AllReduce(out, x)


def _all_gather_last(call: Call) -> Iterator[Work]:
    (x,), (out,) = call.inputs, call.outputs
    assert x is not None
    num_rows, width = out.shape
    if num_rows == 1:  # a single row needs no transpose
        yield AllGather(out._replace(shape=(width, 1)), x._replace(shape=(x.shape[1], 1)))
        return
    part = DeviceArray(call.workspace, x.dtype, (x.shape[1], num_rows))
    whole = DeviceArray(call.workspace + align_up(x.nbytes, _ALIGNMENT), x.dtype, (width, num_rows))
    yield from transpose(part, x)
    yield AllGather(whole, part)
    yield from transpose(out, whole)


def _gather_workspace(call: Call) -> int:
    (x,), (out,) = call.inputs, call.outputs
    assert x is not None
    return align_up(x.nbytes, _ALIGNMENT) + out.nbytes


def _own_heads(call: Call) -> Iterator[Work]:
    """With heads as the first dim, a rank's heads are contiguous."""
    (x,), (out,) = call.inputs, call.outputs
    assert x is not None
    num_tokens, num_heads, width = x.shape
    count = out.shape[1]
    heads = DeviceArray(call.workspace, x.dtype, (num_heads, num_tokens, width))
    begin = call.attributes["begin"] * num_tokens * width * x.dtype.itemsize
    yield permute_heads(heads, x)
    yield permute_heads(out, DeviceArray(heads.address + begin, x.dtype, (count, num_tokens, width)))


def _heads_workspace(call: Call) -> int:
    (x,) = call.inputs
    assert x is not None
    return x.nbytes


def _has_nccl(_: Signature) -> str | None:
    """Why collectives are unavailable, or None (see `Kernel.supports`)."""
    return None if find_nccl() is not None else "NCCL is not installed: pip install nvidia-nccl-cu13"


KERNELS = (
    cuda_kernel("all_reduce", _all_reduce, name="nccl", supports=_has_nccl, is_relocatable=False),
    cuda_kernel(
        "all_gather_last",
        _all_gather_last,
        name="nccl",
        supports=_has_nccl,
        workspace_bytes=_gather_workspace,
        is_relocatable=False,
    ),
    cuda_kernel("own_heads", _own_heads, workspace_bytes=_heads_workspace),
)
