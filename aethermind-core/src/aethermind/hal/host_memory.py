"""Host memory as a device: the allocator, streams, events and transfers of backends that use host memory.

Work runs synchronously, in the caller's thread, so a stream is always idle and an event is a time stamp.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from contextlib import suppress

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal.device import DeviceId, DeviceManager, DeviceProperties
from aethermind.hal.memory import ALIGNMENT, Allocator, Buffer, MemoryCounter, MemoryKind, MemoryStats, align_up
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill

__all__ = [
    "HostAllocator",
    "HostDevices",
    "HostEvents",
    "HostStreams",
    "HostTransfer",
    "discard_pages",
    "host_memory_bytes",
    "resident_bytes",
    "trim_heap",
]


def host_memory_bytes() -> int:
    """Return the physical memory of this host in bytes; 0 where unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None where unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def trim_heap() -> None:
    """Return the free memory of glibc's heap to the system (`malloc_trim`); the next allocations take longer.

    glibc maps large arrays at first. Once one was freed, it allocates arrays of that size from its heap, which by
    itself shrinks at its end only. Does nothing with other C libraries.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def discard_pages(address: int, nbytes: int) -> int:
    """Return the whole pages in a range of private memory to the system; they are zero when they are touched again.

    Returns the number of bytes, 0 on systems that do not support it.
    """
    begin = align_up(address, mmap.PAGESIZE)
    size = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if size <= 0 or sys.platform != "linux":
        return 0
    failed = ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
    return 0 if failed else size


class HostDevices(DeviceManager):
    """One device: this host."""

    def __init__(self, properties: DeviceProperties) -> None:
        self._properties = properties

    def count(self) -> int:
        return 1

    def properties(self, index: int) -> DeviceProperties:
        _check_index(index)
        return self._properties

    def current(self) -> int:
        return 0

    def set_current(self, index: int) -> None:
        _check_index(index)

    def synchronize(self, index: int) -> None:
        _check_index(index)


class HostAllocator(Allocator):
    """Allocates zeroed host memory, whose pages the system provides when they are first touched."""

    def __init__(self, device: DeviceId) -> None:
        self._device = device
        self._lock = threading.RLock()  # a garbage collection inside `alloc` may release another buffer
        self._counter = MemoryCounter()

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        import numpy as np

        if nbytes < 0:
            raise InvalidArgumentError(f"Cannot allocate {nbytes} bytes on {self._device}: the size is negative.")
        try:
            memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):
            raise OutOfMemoryError(
                f"Could not allocate {nbytes} bytes on {self._device}: the host has {host_memory_bytes()} bytes, "
                f"{self.stats().allocated_bytes} are in use by this process's tensors. "
                "Lower max_model_len or the number of KV blocks, or choose a smaller model."
            ) from None
        with self._lock:
            self._counter.add(nbytes)

        def release() -> None:
            with self._lock:
                self._counter.remove(nbytes)

        address = align_up(memory.ctypes.data, ALIGNMENT)
        return Buffer(self._device, address, nbytes, kind=kind, is_host_accessible=True, release=release, owner=memory)

    def stats(self) -> MemoryStats:
        with self._lock:
            return self._counter.stats()


class HostStream(Stream):
    """A stream that is always idle: work runs when it is submitted."""

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
    """Creates streams that run work when it is submitted."""

    def __init__(self) -> None:
        self._default = HostStream()

    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        _check_index(index)
        return HostStream()

    def default(self, index: int = 0) -> Stream:
        _check_index(index)
        return self._default


class HostEvent(Event):
    """An event: the time at which it was recorded."""

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
    """Creates events that are time stamps."""

    def create(self, *, timing: bool = False) -> Event:
        return HostEvent(timing=timing)


class HostTransfer(DataTransfer):
    """Copies within host memory; statistics are always 0, as nothing crosses between host and device."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        ctypes.memmove(destination.address, source.address, source.nbytes)

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        stream.synchronize()
        self.copy(destination, source)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        if stream is not None:
            stream.synchronize()
        ctypes.memset(destination.address, byte, destination.nbytes)

    def stats(self) -> TransferStats:
        return TransferStats(0, 0)


def _check_index(index: int) -> None:
    if index != 0:
        raise DeviceError(f"Device index {index} does not exist: host memory is one device, number 0.")
