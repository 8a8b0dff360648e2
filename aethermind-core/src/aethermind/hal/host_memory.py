"""Host memory as a device: the allocator, streams, events and copies that every device in plain host memory can share.

Work runs at once, in the caller's thread, so a stream is always finished and an event is a time stamp.
"""

from __future__ import annotations

import ctypes
import threading
import time

from aethermind.errors import DeviceError, OutOfMemoryError
from aethermind.hal.allocator import ALIGNMENT, Allocator, MemoryStats
from aethermind.hal.buffer import Buffer, MemoryKind
from aethermind.hal.device import DeviceId, DeviceManager, DeviceProperties
from aethermind.hal.event import Event, EventManager
from aethermind.hal.layout import align_up
from aethermind.hal.stream import Stream, StreamManager
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats

__all__ = ["HostAllocator", "HostDevices", "HostEvents", "HostStreams", "HostTransfer"]


class HostDevices(DeviceManager):
    """One device: this host."""

    def __init__(self, properties: DeviceProperties) -> None:
        self._properties = properties

    def count(self) -> int:
        return 1

    def properties(self, index: int) -> DeviceProperties:
        self._check(index)
        return self._properties

    def current(self) -> int:
        return 0

    def set_current(self, index: int) -> None:
        self._check(index)

    def synchronize(self, index: int) -> None:
        self._check(index)

    def _check(self, index: int) -> None:
        if index != 0:
            raise DeviceError(f"Device index {index} does not exist: {self._properties.name} has one device, number 0.")


class HostAllocator(Allocator):
    """Zero-initialised, aligned host memory."""

    def __init__(self, device: DeviceId) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._allocated = self._peak = self._count = 0

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        try:
            memory = ctypes.create_string_buffer(nbytes + ALIGNMENT)
        except (MemoryError, OverflowError):
            raise OutOfMemoryError(
                f"Could not allocate {nbytes} bytes on {self._device} ({self._allocated} in use). "
                "Lower --max-model-len or the number of KV blocks, or choose a smaller model."
            ) from None
        with self._lock:
            self._allocated += nbytes
            self._peak = max(self._peak, self._allocated)
            self._count += 1

        def release() -> None:
            with self._lock:
                self._allocated -= nbytes

        address = align_up(ctypes.addressof(memory), ALIGNMENT)
        return Buffer(self._device, address, nbytes, kind=kind, is_host_accessible=True, release=release, owner=memory)

    def stats(self) -> MemoryStats:
        return MemoryStats(self._allocated, self._allocated, self._peak, self._count)


class HostStream(Stream):
    """Work ran when it was submitted, so there is never anything to wait for."""

    def __init__(self) -> None:
        self._is_destroyed = False

    def query(self) -> bool:
        self._check()
        return True

    def synchronize(self) -> None:
        self._check()

    def wait_event(self, event: Event) -> None:
        self._check()
        event.synchronize()

    def destroy(self) -> None:
        self._check()
        self._is_destroyed = True

    def _check(self) -> None:
        if self._is_destroyed:
            raise DeviceError("The stream was destroyed; create another one.")


class HostStreams(StreamManager):
    """Streams that run everything at once."""

    def __init__(self) -> None:
        self._default = HostStream()

    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        return HostStream()

    def default(self, index: int = 0) -> Stream:
        return self._default


class HostEvent(Event):
    """The time at which it was recorded."""

    def __init__(self, *, timing: bool) -> None:
        self._has_timing = timing
        self._recorded_at: float | None = None

    def record(self, stream: Stream) -> None:
        stream.synchronize()
        self._recorded_at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, HostEvent), "events of different backends cannot be compared"
        if not (self._has_timing and end._has_timing) or self._recorded_at is None or end._recorded_at is None:
            raise DeviceError("Elapsed time needs two recorded events that were created with timing=True.")
        return (end._recorded_at - self._recorded_at) * 1e3


class HostEvents(EventManager):
    """Makes time stamps."""

    def create(self, *, timing: bool = False) -> Event:
        return HostEvent(timing=timing)


class HostTransfer(DataTransfer):
    """Copies within host memory. Nothing crosses a bus, so nothing is counted."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        ctypes.memmove(destination.address, source.address, source.nbytes)

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        self.copy(destination, source)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        ctypes.memset(destination.address, byte, destination.nbytes)

    def stats(self) -> TransferStats:
        return TransferStats(0, 0)


def check_copy(destination: Tensor, source: Tensor) -> None:
    """Raise DeviceError unless the two tensors can be copied onto each other byte by byte."""
    if destination.dtype is not source.dtype or destination.shape != source.shape:
        raise DeviceError(
            f"Cannot copy a {source.dtype} tensor of shape {source.shape} to a {destination.dtype} one of shape {destination.shape}."
        )
    if not (destination.is_contiguous and source.is_contiguous):
        raise DeviceError("Copies take contiguous tensors; make the source contiguous first.")
