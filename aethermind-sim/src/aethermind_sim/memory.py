"""Simulated device memory: pages that are protected (mprotect) except while work on them runs.

A host access to them raises SIGSEGV. A buffer ends at a guard page that is never accessible, so an overrun raises
SIGSEGV as well.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal.device import DeviceId
from aethermind.hal.memory import ALIGNMENT, Allocator, Buffer, MemoryCounter, MemoryKind, MemoryStats, align_up
from aethermind_sim.devices import SimDevices
from aethermind_sim.faults import Faults

__all__ = ["Region", "SimAllocator", "Span", "accessible"]

_NO_ACCESS, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_GARBAGE = 0xFF
"""Fill byte of fresh memory: NaN in every float type, -1 in integers."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class Region:
    """The pages of one buffer; `device` is None for host memory, which is always accessible."""

    def __init__(self, nbytes: int, device: int | None) -> None:
        """Reserve the pages; MemoryError when the system has no address space left."""
        self.device = device
        self.nbytes = nbytes
        self.is_mapped = True
        self._span = align_up(nbytes, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, self._span + mmap.PAGESIZE, _NO_ACCESS, flags, -1, 0)
        if base == _MAP_FAILED:
            raise MemoryError
        self._base: int = base
        self.address = base + self._span - align_up(nbytes, ALIGNMENT)
        _protect(self.address, nbytes, _WRITE)
        ctypes.memset(self.address, _GARBAGE, nbytes)
        if device is not None:
            _protect(self.address, nbytes, _NO_ACCESS)

    def open(self, address: int, nbytes: int, *, is_written: bool) -> None:
        """Make bytes accessible to the device, read-only or writable; DeviceError after the memory was freed."""
        if not self.is_mapped:
            raise DeviceError(
                f"{self.nbytes} bytes were freed before the work that was submitted on them ran. "
                "Keep buffers until their stream has been synchronised."
            )
        if self.device is not None:
            _protect(address, self._bytes_before_guard(address, nbytes), _WRITE if is_written else _READ)

    def close(self, address: int, nbytes: int) -> None:
        """Protect the pages again."""
        if self.device is not None and self.is_mapped:
            _protect(address, self._bytes_before_guard(address, nbytes), _NO_ACCESS)

    def release(self) -> None:
        """Unmap the pages; later accesses raise SIGSEGV."""
        self.is_mapped = False
        _libc.munmap(self._base, self._span + mmap.PAGESIZE)

    def _bytes_before_guard(self, address: int, nbytes: int) -> int:
        """Return the part of `nbytes` that lies before the guard page."""
        return min(nbytes, self._base + self._span - address)


class Span(NamedTuple):
    """The bytes of a region that a work item reads, or writes if `is_written`."""

    region: Region
    address: int
    nbytes: int
    is_written: bool


@contextmanager
def accessible(spans: Iterable[Span]) -> Iterator[None]:
    """Make the pages of a work item accessible, and no others; write access has page granularity."""
    made_accessible: list[Span] = []
    try:
        for span in sorted(spans, key=lambda span: span.is_written):
            span.region.open(span.address, span.nbytes, is_written=span.is_written)
            made_accessible.append(span)
        yield
    finally:
        for span in made_accessible:
            span.region.close(span.address, span.nbytes)


def _protect(address: int, nbytes: int, protection: int) -> None:
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    if nbytes and _libc.mprotect(begin, address + nbytes - begin, protection):
        raise DeviceError(f"Could not protect {nbytes} bytes: error {ctypes.get_errno()} of mprotect.")


class SimAllocator(Allocator):
    """Allocates memory filled with garbage on the current device, with statistics per device."""

    def __init__(self, name: str, devices: SimDevices, faults: Faults) -> None:
        self._name = name
        self._devices = devices
        self._faults = faults
        self._lock = threading.RLock()  # reentrant: a garbage collection inside `alloc` may release another buffer
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

    def device_bytes(self, index: int | None = None) -> int:
        """Allocated bytes of a device, by default the current one, without page-locked host memory."""
        index = self._devices.current() if index is None else index
        with self._lock:
            return sum(region.nbytes for region in self._regions.values() if region.device == index)

    def regions(self) -> list[Region]:
        """Return the allocated regions by address."""
        with self._lock:
            return sorted(self._regions.values(), key=lambda region: region.address)
