"""The `numpy` device: host memory, and the operators' NumPy references as kernels. Everyone's oracle, and a newcomer's first green run."""

from __future__ import annotations

import os

from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.device import DeviceId, DeviceProperties, Probe
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import HostAllocator, HostDevices, HostEvents, HostStreams, HostTransfer

__all__ = ["NumpyBackend", "host_memory_bytes", "probe"]


def probe() -> Probe:
    """Always there: NumPy is a requirement of the core."""
    return Probe(1, "NumPy is always installed")


def host_memory_bytes() -> int:
    """Physical memory of this host in bytes; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


class NumpyBackend(Backend):
    """Correct, not fast."""

    def __init__(self) -> None:
        self.name = "numpy"
        self.devices = HostDevices(DeviceProperties("NumPy on the host", host_memory_bytes(), os.cpu_count() or 1))
        self.allocator = HostAllocator(DeviceId("numpy"))
        self.streams = HostStreams()
        self.events = HostEvents()
        self.transfer = HostTransfer()
        self.capabilities = Capabilities((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), is_host_accessible=True)

    def close(self) -> None:
        """Nothing is open."""
