"""The `null` device: it has memory and streams and computes nothing.

Everything above it can be tested and timed anywhere. It doubles as the skeleton of a new backend: copy it, then give
each part a body.
"""

from __future__ import annotations

from typing import Any

from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.device import DeviceId, DeviceProperties, Probe
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import HostAllocator, HostDevices, HostEvents, HostStreams, HostTransfer
from aethermind.hal.stream import Stream

__all__ = ["NullBackend", "probe"]


def probe() -> Probe:
    """Always there."""
    return Probe(1, "it computes nothing.")


class NullExecutable:
    """Runs no step: outputs keep whatever their memory held."""

    num_native_breaks = 0

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Nothing to enqueue."""

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Nothing to enqueue."""


class NullBackend(Backend):
    """Memory that is real and work that is not."""

    def __init__(self) -> None:
        self.name = "null"
        self.devices = HostDevices(DeviceProperties("null", 0, 1))
        self.allocator = HostAllocator(DeviceId("null"))
        self.streams = HostStreams()
        self.events = HostEvents()
        self.transfer = HostTransfer()
        self.capabilities = Capabilities((DType.FLOAT32, DType.BFLOAT16), is_host_accessible=True)

    def close(self) -> None:
        """Nothing is open."""

    def compile(self, plan: Any, memory: Any) -> NullExecutable:
        """An executable that runs nothing."""
        return NullExecutable()
