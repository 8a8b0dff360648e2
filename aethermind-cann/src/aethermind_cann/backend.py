"""The Ascend NPU backend: devices, memory, streams and executables over torch_npu."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu  # noqa: F401  # registers the device type `npu` with torch

from aethermind.graph.plan import BATCH_SIZES
from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.communicator import Communicator
from aethermind.hal.device import DeviceUsage
from aethermind.hal.dtype import DType
from aethermind.hal.profiler_ranges import ProfilerRanges
from aethermind_cann.communicator import HcclCommunicator
from aethermind_cann.devices import CannDevices
from aethermind_cann.executable import CannExecutable
from aethermind_cann.graph_capture import can_capture
from aethermind_cann.memory import CannAllocator
from aethermind_cann.mstx_ranges import mstx_range
from aethermind_cann.streams import CannEvents, CannStreams
from aethermind_cann.transfer import CannTransfer

__all__ = ["CannBackend"]

_BLOCK_SIZE = 128
"""The smallest block of the KV cache that the fused attention takes (`kernels.paged_attention`)."""


class CannBackend(Backend):
    """The backend of all NPUs; each component wraps its counterpart in torch_npu."""

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
            supports_graph_capture=can_capture(),
            supports_peer_access=True,
            batch_sizes=BATCH_SIZES if can_capture() else (),
            preferred_block_size=_BLOCK_SIZE,
        )
        self._communicator: HcclCommunicator | None = None

    def close(self) -> None:
        for index in range(self.devices.count()):
            self.devices.synchronize(index)
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def free_memory(self) -> int:
        """Free bytes: the driver's, and those that torch's allocator caches."""
        free, _ = torch.npu.mem_get_info(self.devices.current())
        stats = self.allocator.stats()
        return int(free) + stats.reserved_bytes - stats.allocated_bytes

    def can_access_peer(self, index: int, other: int) -> bool:
        """Ask the driver: peer access depends on how the NPUs are connected."""
        return index != other and bool(torch.npu.can_device_access_peer(index, other))

    def usage(self, index: int) -> DeviceUsage | None:
        """Return the driver's reading of an NPU's memory; None if it does not answer."""
        try:
            free, total = torch.npu.mem_get_info(index)
        except RuntimeError:
            return None
        return DeviceUsage(f"{self.name}:{index}", total - free, total)

    def profiler_ranges(self) -> ProfilerRanges:
        """Ranges of mstx, which msprof shows on the host and on the stream."""
        return mstx_range

    def compile(self, plan: Any, memory: Any) -> CannExecutable:
        """Compile a plan to torch calls on a stream of the current device."""
        return CannExecutable(plan, memory, self.allocator, self.devices.current())

    def communicator(self, rank: int, size: int, address: str | None = None) -> Communicator | None:
        """Open an HCCL communicator of `size` processes at an address, by default that of torch's environment
        variables.
        """
        self._communicator = HcclCommunicator(rank, size, address)
        return self._communicator
