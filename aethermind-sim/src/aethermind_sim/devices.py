"""Two devices, which share the host's memory half and half."""

from __future__ import annotations

from collections.abc import Callable

from aethermind.errors import DeviceError
from aethermind.hal.device import DeviceManager, DeviceProperties
from aethermind.hal.host_memory import host_memory_bytes
from aethermind_sim.probe import NUM_DEVICES

__all__ = ["SimDevices"]


class SimDevices(DeviceManager):
    """`synchronize(index)` is what waits for a device."""

    def __init__(self, seed: int, synchronize: Callable[[int], None]) -> None:
        self._properties = DeviceProperties(
            f"simulated accelerator, seed {seed}", host_memory_bytes() // NUM_DEVICES, 1, details={"seed": str(seed)}
        )
        self._synchronize = synchronize
        self._current = 0

    def count(self) -> int:
        return NUM_DEVICES

    def properties(self, index: int) -> DeviceProperties:
        self.check(index)
        return self._properties

    def current(self) -> int:
        return self._current

    def set_current(self, index: int) -> None:
        self.check(index)
        self._current = index

    def synchronize(self, index: int) -> None:
        self.check(index)
        self._synchronize(index)

    def check(self, index: int) -> None:
        """DeviceError when there is no such device."""
        if not 0 <= index < NUM_DEVICES:
            raise DeviceError(f"Device index {index} does not exist: there are {NUM_DEVICES} simulated devices.")
