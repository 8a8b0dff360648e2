"""The Ascend NPU backend, put together."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu  # noqa: F401  # makes torch know the device type `npu`

from aethermind.graph.repeated_runs import BATCH_SIZES
from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.communicator import Communicator
from aethermind.hal.dtype import DType
from aethermind_cann.communicator import HcclCommunicator
from aethermind_cann.devices import CannDevices
from aethermind_cann.executable import CannExecutable
from aethermind_cann.graph_capture import can_capture
from aethermind_cann.memory import CannAllocator
from aethermind_cann.streams import CannEvents, CannStreams
from aethermind_cann.transfer import CannTransfer

__all__ = ["CannBackend"]


class CannBackend(Backend):
    """Every part stands on the part of torch_npu of the same name."""

    def __init__(self) -> None:
        self.name = "cann"
        self.devices = CannDevices()
        self.allocator: CannAllocator = CannAllocator(self.name, self.devices)
        self.streams: CannStreams = CannStreams(self.devices)
        self.events = CannEvents()
        self.transfer = CannTransfer(self.streams)
        self.capabilities = Capabilities(
            (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32),
            is_host_accessible=False,
            block_sizes=(1, 16, 32, 64, 128),
            supports_graph_capture=can_capture(),
            batch_sizes=BATCH_SIZES if can_capture() else (),
        )
        self._communicator: HcclCommunicator | None = None

    def close(self) -> None:
        for index in range(self.devices.count()):
            self.devices.synchronize(index)
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def free_memory(self) -> int:
        """What the driver has, and what torch keeps for reuse."""
        free, _ = torch.npu.mem_get_info(self.devices.current())
        stats = self.allocator.stats()
        return int(free) + stats.reserved_bytes - stats.allocated_bytes

    def compile(self, plan: Any, memory: Any) -> CannExecutable:
        """Every plan runs as calls of torch on a stream, on the device that is current now."""
        return CannExecutable(plan, memory, self.allocator, self.devices.current())

    def communicator(self, rank: int, size: int, address: str | None = None) -> Communicator | None:
        """Collectives by HCCL between `size` processes, which meet at an address, or where torch's variables say."""
        self._communicator = HcclCommunicator(rank, size, address)
        return self._communicator
