"""The core's devices in host memory: `numpy`, whose kernels are the operators' references, and `null`.

Other devices are tested against `numpy`. `null` has memory and streams but computes nothing, for tests and to measure
the overhead outside of kernels; a new backend can start as a copy of it.
"""

from __future__ import annotations

import os
from typing import Any

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
from aethermind.hal.stream import Stream

__all__ = ["NullBackend", "NumpyBackend", "probe_null", "probe_numpy"]


def probe_numpy() -> Probe:
    """Return that the device is available: the core requires NumPy."""
    return Probe(1, "NumPy is always installed.")


class NumpyBackend(Backend):
    """The `numpy` device: host memory; its kernels are the operators' NumPy references."""

    def __init__(self) -> None:
        self.name = "numpy"
        self.devices = HostDevices(DeviceProperties("NumPy on the host", host_memory_bytes(), os.cpu_count() or 1))
        self.allocator = HostAllocator(DeviceId("numpy"))
        self.streams = HostStreams()
        self.events = HostEvents()
        self.transfer = HostTransfer()
        self.capabilities = Capabilities((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), is_host_accessible=True)

    def close(self) -> None:
        """Do nothing: no resource is open."""


def probe_null() -> Probe:
    """Return that the device is available."""
    return Probe(1, "it computes nothing.")


class NullExecutable:
    """An executable that runs no step: outputs are undefined. `symbols` are the sizes of the plan's symbolic dims."""

    num_native_breaks = 0

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue nothing."""

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue nothing."""


class NullBackend(Backend):
    """The `null` device: memory and streams, but no computation."""

    def __init__(self) -> None:
        self.name = "null"
        self.devices = HostDevices(DeviceProperties("null", 0, 1))
        self.allocator = HostAllocator(DeviceId("null"))
        self.streams = HostStreams()
        self.events = HostEvents()
        self.transfer = HostTransfer()
        self.capabilities = Capabilities((DType.FLOAT32, DType.BFLOAT16), is_host_accessible=True)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def compile(self, plan: Any, memory: Any) -> NullExecutable:
        """Return an executable that runs nothing."""
        return NullExecutable()
