"""The process group `hccl`: gloo over host copies, in the order of the current stream."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_npu.streams import current_stream

__all__ = ["register"]


class _Hccl(dist.ProcessGroup):
    """Accepts device tensors only, as HCCL does."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return "hccl"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        (tensor,) = tensors
        host = _on_host(tensor)
        work = self._gloo.allreduce([host], opts)
        return _after(work, tensor, host)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        (tensor,) = tensors
        host = _on_host(tensor)
        return _after(self._gloo.broadcast([host], opts), tensor, host)

    def allgather(self, outputs: list[list[torch.Tensor]], parts: list[torch.Tensor], opts: Any = None) -> Any:
        (parts_of_ranks,), (part,) = outputs, parts
        host = [torch.empty(one.shape, dtype=one.dtype) for one in parts_of_ranks]
        work = self._gloo.allgather([host], [_on_host(part)])
        work.wait()
        for tensor, one in zip(parts_of_ranks, host, strict=True):
            _after(work, tensor, one)
        return work


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "npu":
        raise RuntimeError(f"hccl takes tensors of the device, not {tensor.device}")
    return tensor.cpu()


def _after(work: Any, tensor: torch.Tensor, host: torch.Tensor) -> Any:
    work.wait()
    tensor.copy_(host)
    current_stream(tensor.device).synchronize()
    return work


def register() -> None:
    """Register it with torch.distributed."""
    dist.Backend.register_backend("hccl", _Hccl, devices=["npu"])
