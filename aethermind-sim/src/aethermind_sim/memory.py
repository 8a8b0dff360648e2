"""Device memory that only the device reaches: pages closed to everybody but the work that runs on them.

A host that reads or writes them dies of SIGSEGV, as it should. A buffer ends where a page begins that is never open,
so what runs beyond a buffer dies as well.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal.allocator import ALIGNMENT, Allocator, MemoryCounter, MemoryStats
from aethermind.hal.buffer import Buffer, MemoryKind
from aethermind.hal.device import DeviceId
from aethermind.hal.layout import align_up
from aethermind_sim.devices import SimDevices
from aethermind_sim.faults import Faults

__all__ = ["Region", "SimAllocator", "Span", "opened"]

_CLOSED, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_GARBAGE = 0xFF
"""What fresh memory holds in every byte: NaN in every float type, -1 in integers."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class Region:
    """The pages of one buffer; `device` is None for host memory, which is always open."""

    def __init__(self, nbytes: int, device: int | None) -> None:
        """MemoryError when the system has no address space left."""
        self.device = device
        self.nbytes = nbytes
        self.is_mapped = True
        self._span = align_up(nbytes, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, self._span + mmap.PAGESIZE, _CLOSED, flags, -1, 0)
        if base == _MAP_FAILED:
            raise MemoryError
        self._base: int = base
        self.address = base + self._span - align_up(nbytes, ALIGNMENT)
        _protect(self.address, nbytes, _WRITE)
        ctypes.memset(self.address, _GARBAGE, nbytes)
        if device is not None:
            _protect(self.address, nbytes, _CLOSED)

    def open(self, address: int, nbytes: int, *, is_written: bool) -> None:
        """Let the device read some bytes, or read and write; DeviceError when the memory was freed."""
        if not self.is_mapped:
            raise DeviceError(
                f"{self.nbytes} bytes were freed before the work that was submitted on them ran. "
                "Keep buffers until their stream has been synchronised."
            )
        if self.device is not None:
            _protect(address, self._inside(address, nbytes), _WRITE if is_written else _READ)

    def close(self, address: int, nbytes: int) -> None:
        """Keep everybody out again."""
        if self.device is not None and self.is_mapped:
            _protect(address, self._inside(address, nbytes), _CLOSED)

    def release(self) -> None:
        """Give the pages back; whoever still has an address in them dies of using it."""
        self.is_mapped = False
        _libc.munmap(self._base, self._span + mmap.PAGESIZE)

    def _inside(self, address: int, nbytes: int) -> int:
        """How many of these bytes are not on the last page, which nothing opens."""
        return min(nbytes, self._base + self._span - address)


class Span(NamedTuple):
    """What a piece of work uses of a region."""

    region: Region
    address: int
    nbytes: int
    is_written: bool


@contextmanager
def opened(spans: Iterable[Span]) -> Iterator[None]:
    """Open the pages of a piece of work, and no others; a page with something to write may be written as a whole."""
    begun: list[Span] = []
    try:
        for span in sorted(spans, key=lambda span: span.is_written):
            span.region.open(span.address, span.nbytes, is_written=span.is_written)
            begun.append(span)
        yield
    finally:
        for span in begun:
            span.region.close(span.address, span.nbytes)


def _protect(address: int, nbytes: int, protection: int) -> None:
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    if nbytes and _libc.mprotect(begin, address + nbytes - begin, protection):
        raise DeviceError(f"Could not protect {nbytes} bytes: error {ctypes.get_errno()} of mprotect.")


class SimAllocator(Allocator):
    """Allocates on the current device, full of garbage, and counts for each device."""

    def __init__(self, name: str, devices: SimDevices, faults: Faults) -> None:
        self._name = name
        self._devices = devices
        self._faults = faults
        self._lock = threading.RLock()  # a garbage collection inside `alloc` may release another buffer
        self._regions: dict[int, Region] = {}
        self._counters = [MemoryCounter() for _ in range(devices.count())]

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        device = DeviceId(self._name, self._devices.current())
        if nbytes < 0:
            raise InvalidArgumentError(f"Cannot allocate {nbytes} bytes on {device}: the size is negative.")
        self._faults.check_present()
        total = self._devices.properties(device.index).total_memory_bytes
        counter = self._counters[device.index]
        with self._lock:
            in_use = self.device_bytes()
            is_fault = self._faults.is_due("allocation")
            try:
                if is_fault or (kind is MemoryKind.DEVICE and nbytes > total - in_use):
                    raise MemoryError
                region = Region(nbytes, device.index if kind is MemoryKind.DEVICE else None)
            except MemoryError:
                raise OutOfMemoryError(
                    f"Could not allocate {nbytes} bytes on {device}: it has {total} bytes, {in_use} are in use"
                    f"{', and this is an injected fault' if is_fault else ''}. "
                    "Lower --max-model-len or the number of KV blocks, or choose a smaller model."
                ) from None
            self._regions[id(region)] = region
            counter.add(nbytes)

        def release() -> None:
            with self._lock:
                del self._regions[id(region)]
                region.release()
                counter.remove(nbytes)

        is_host_accessible = region.device is None
        return Buffer(
            device,
            region.address,
            nbytes,
            kind=kind,
            is_host_accessible=is_host_accessible,
            release=release,
            owner=region,
        )

    def stats(self) -> MemoryStats:
        with self._lock:
            return self._counters[self._devices.current()].stats()

    def device_bytes(self) -> int:
        """What the current device's memory holds: no page-locked memory of the host."""
        index = self._devices.current()
        with self._lock:
            return sum(region.nbytes for region in self._regions.values() if region.device == index)

    def regions(self) -> list[Region]:
        """Those in use, by address."""
        with self._lock:
            return sorted(self._regions.values(), key=lambda region: region.address)
