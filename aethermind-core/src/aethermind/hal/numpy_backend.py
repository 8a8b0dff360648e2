"""The `numpy` device: host memory, and the operators' NumPy references as kernels.

It is everyone's oracle, and a newcomer's first green run.
"""

from __future__ import annotations

import os

from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.device import DeviceId, DeviceProperties, Probe
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import (
    HostAllocator,
    HostDevices,
    HostEvents,
    HostStreams,
    HostTransfer,
    host_memory_bytes,
)

__all__ = ["NumpyBackend", "host_memory_bytes", "probe"]


def probe() -> Probe:
    """Always there: NumPy is a requirement of the core."""
    return Probe(1, "NumPy is always installed.")


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
