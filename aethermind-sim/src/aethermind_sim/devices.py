"""The simulator's two devices. By default each has half of the host's memory."""

from __future__ import annotations

from collections.abc import Callable

from aethermind.hal.device import CountedDevices, DeviceProperties
from aethermind.hal.host_memory import host_memory_bytes
from aethermind_sim.probe import NUM_DEVICES

__all__ = ["SimDevices"]


class SimDevices(CountedDevices):
    """The simulated devices. `synchronize(index)` waits for one of them; `memory_bytes` is the memory of each."""

    def __init__(self, seed: int, synchronize: Callable[[int], None], memory_bytes: int | None = None) -> None:
        super().__init__(NUM_DEVICES, "Simulated device")
        total = memory_bytes or host_memory_bytes() // NUM_DEVICES
        self._properties = DeviceProperties(
            f"simulated accelerator, seed {seed}", total, 1, details={"seed": str(seed)}
        )
        self._synchronize = synchronize

    def properties(self, index: int) -> DeviceProperties:
        self.check(index)
        return self._properties

    def synchronize(self, index: int) -> None:
        self.check(index)
        self._synchronize(index)
