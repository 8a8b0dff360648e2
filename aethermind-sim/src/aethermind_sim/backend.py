"""The backend of the simulated accelerator."""

from __future__ import annotations

import os
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.device import DeviceUsage
from aethermind.hal.dtype import DType
from aethermind_sim.devices import SimDevices
from aethermind_sim.executable import SimExecutable
from aethermind_sim.faults import Faults, parse_faults
from aethermind_sim.memory import SimAllocator
from aethermind_sim.streams import SimEvents, SimStreams
from aethermind_sim.timeline import Timeline
from aethermind_sim.transfer import SimTransfer

__all__ = ["SimBackend", "open_backend"]


class SimBackend(Backend):
    """Two simulated devices. `seed` determines the order of work: the same calls in one thread run in the same order.

    `faults.inject` injects faults. With `memory_bytes` each device has that much memory and reports what is free;
    without, devices use the host's memory.
    """

    def __init__(self, seed: int = 0, faults: Faults | None = None, memory_bytes: int | None = None) -> None:
        self.name = "sim"
        self._memory_bytes = memory_bytes
        self.faults = faults or Faults()
        self._timeline = Timeline(seed, self.faults)
        self.devices = SimDevices(seed, self._timeline.finish_device, memory_bytes)
        self.allocator: SimAllocator = SimAllocator(self.name, self.devices, self.faults)
        self.streams: SimStreams = SimStreams(self._timeline, self.devices)
        self.events = SimEvents(self._timeline)
        self.transfer = SimTransfer(self.streams, self.faults)
        self.capabilities = Capabilities(
            (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            is_host_accessible=False,
            supports_peer_access=True,
            packs_inputs=True,
            is_asynchronous=True,
        )

    def close(self) -> None:
        for index in range(self.devices.count()):
            self.devices.synchronize(index)

    def free_memory(self) -> int | None:
        """Return `memory_bytes` minus the bytes allocated on the current device; None without `memory_bytes`."""
        return self._memory_bytes and self._memory_bytes - self.allocator.device_bytes()

    def usage(self, index: int) -> DeviceUsage:
        """Return the memory that is allocated on a simulated device."""
        total = self.devices.properties(index).total_memory_bytes
        return DeviceUsage(f"{self.name}:{index}", self.allocator.device_bytes(index), total)

    def compile(self, plan: Any, memory: Any) -> SimExecutable:
        """Compile a plan whose steps run as work on a stream."""
        return SimExecutable(plan, memory, self.allocator.regions())


def open_backend() -> SimBackend:
    """Open the devices with `AETHERMIND_SIM_SEED` (default 0), `AETHERMIND_SIM_FAULTS` (default none; see
    `faults.parse_faults`) and `AETHERMIND_SIM_MEMORY` (MiB per device; default the host's memory).

    Raises InvalidArgumentError for a value that cannot be parsed.
    """
    seed = os.environ.get("AETHERMIND_SIM_SEED") or "0"
    if not seed.isdecimal():
        raise InvalidArgumentError(f"AETHERMIND_SIM_SEED is {seed!r}; set it to a number such as 7, or unset it.")
    memory = os.environ.get("AETHERMIND_SIM_MEMORY") or "0"
    if not memory.isdecimal():
        raise InvalidArgumentError(f"AETHERMIND_SIM_MEMORY is {memory!r}; set it to MiB such as 64, or unset it.")
    faults = parse_faults(os.environ.get("AETHERMIND_SIM_FAULTS", ""))
    return SimBackend(int(seed), faults, (int(memory) << 20) or None)
