"""A device whose memory the host may not look into, made of host memory."""

from __future__ import annotations

from typing import Any

from aethermind.graph import Plan
from aethermind.graph.executor import MemoryMap, StepLoop
from aethermind.hal import Buffer, DeviceId, MemoryKind, Tensor
from aethermind.hal.backend import Capabilities
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind.hal.host_memory import HostAllocator

__all__ = ["PackingBackend", "RemoteBackend"]


class RemoteAllocator(HostAllocator):
    """Hands out device buffers that say they cannot be reached."""

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        buffer = super().alloc(nbytes, kind)
        buffer.is_host_accessible = kind is not MemoryKind.DEVICE
        return buffer


class RemoteBackend(NumpyBackend):
    """Computes with the references, on memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = RemoteAllocator(DeviceId("numpy"))
        self.capabilities = Capabilities(self.capabilities.dtypes, is_host_accessible=False)

    def compile(self, plan: Plan, memory: MemoryMap) -> StepLoop:
        return StepLoop(plan, memory)

    @staticmethod
    def peek(tensor: Tensor) -> Any:
        """What the device sees."""
        tensor.buffer.is_host_accessible = True
        array = tensor.numpy().copy()
        tensor.buffer.is_host_accessible = False
        return array


class PackingBackend(RemoteBackend):
    """Finds the inputs of a run in one span."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = Capabilities(self.capabilities.dtypes, is_host_accessible=False, packs_inputs=True)
