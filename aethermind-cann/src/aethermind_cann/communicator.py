"""HCCL collectives between the ranks of a model, through torch.distributed."""

from __future__ import annotations

import torch
import torch.distributed as dist

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind_cann.dtypes import torch_dtype
from aethermind_cann.memory import bytes_of
from aethermind_cann.streams import CannStream

__all__ = ["HcclCommunicator"]


class HcclCommunicator:
    """One process per rank. Rank 0 listens at `address`, by default MASTER_ADDR and MASTER_PORT (see
    torch.distributed).
    """

    def __init__(self, rank: int, size: int, address: str | None = None) -> None:
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"Rank {rank} of {size} does not exist: ranks are counted from 0.")
        self._rank = rank
        self._size = size
        if address is not None and dist.is_initialized():
            raise DeviceError(
                "This process has a process group of torch.distributed already, which supports one. "
                "Close its communicator first."
            )
        if not dist.is_initialized():
            method = "env://" if address is None else f"tcp://{address}"
            dist.init_process_group("hccl", init_method=method, rank=rank, world_size=size)
        self._group = dist.new_group(list(range(size)), backend="hccl")

    def close(self) -> None:
        """Destroy the process group; another one can be opened afterwards."""
        dist.destroy_process_group()
        del self._group  # otherwise its threads may outlive the interpreter, which can abort the process

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""
        with _stream_context(stream):
            dist.all_reduce(_values(tensor), group=self._group)

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Concatenate every rank's `part` along the first axis into `output`."""
        with _stream_context(stream):
            dist.all_gather(list(_values(output).chunk(self._size)), _values(part), group=self._group)

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        with _stream_context(stream):
            dist.broadcast(_values(tensor), root, group=self._group)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        dist.barrier(group=self._group)


def _stream_context(stream: Stream) -> torch.npu.StreamContext:
    assert isinstance(stream, CannStream), "the stream is of another backend"
    return torch.npu.stream(stream.handle)


def _values(tensor: Tensor) -> torch.Tensor:
    return bytes_of(tensor).view(torch_dtype(tensor.dtype)).view(tensor.shape)
