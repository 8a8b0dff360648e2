"""Operators of tensor parallelism: HCCL collectives over torch.distributed's default process group, and the
selection of a rank's own heads.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from aethermind.graph.tensor_parallel import Share
from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _all_reduce(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    (x,), (out,) = inputs, outputs
    if out.data_ptr() != x.data_ptr():
        put(out, x)
    dist.all_reduce(out)


def _all_gather_last(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """Gather parts padded to the largest width, because HCCL requires equal sizes."""
    (x,), (out,) = inputs, outputs
    num_rows, width = out.shape
    share = Share(dist.get_rank(), dist.get_world_size())
    part = x.new_zeros(num_rows, share.longest(width))
    part[:, : x.shape[1]] = x
    parts = [torch.empty_like(part) for _ in range(share.size)]
    dist.all_gather(parts, part)
    for rank, rank_part in enumerate(parts):
        begin, end = share.bounds(width, rank)
        out[:, begin:end] = rank_part[:, : end - begin]


def _own_heads(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], inputs[0].narrow(1, attributes["begin"], attributes["count"]))


KERNELS = [
    plain_kernel("all_reduce", _all_reduce),
    plain_kernel("all_gather_last", _all_gather_last),
    plain_kernel("own_heads", _own_heads),
]
