"""A caching allocator of device memory and page-locked host memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.hal.device import DeviceId
from aethermind.hal.host_memory import HostAllocator
from aethermind.hal.memory import Allocator, Buffer, MemoryKind, MemoryStats
from aethermind_cuda.devices import CudaDevices
from aethermind_cuda.driver import OUT_OF_MEMORY, CudaError, Driver

__all__ = ["CudaAllocator", "MemoryPressure"]

_MIN_SIZE = 512
_MAX_CACHED_SIZE = 32 << 20
"""Larger buffers (arenas, weights, the KV cache) are returned to the driver when freed."""


class MemoryPressure(NamedTuple):
    """Memory of a device in bytes: free (as reported by the driver), total, and cached here."""

    free_bytes: int
    total_bytes: int
    cached_bytes: int


class _Pool:
    """A pool of one kind of memory on one device: free lists by size class, and statistics. The caller locks."""

    def __init__(self, allocate: Callable[[int], int], deallocate: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._deallocate = deallocate
        self._free_lists: defaultdict[int, list[int]] = defaultdict(list)
        self.allocated = self.reserved = self.peak = self.count = self.cached_bytes = 0

    def alloc(self, nbytes: int) -> int:
        size = _size_class(nbytes)
        if self._free_lists[size]:
            address = self._free_lists[size].pop()
            self.cached_bytes -= size
        else:
            address = self._allocate_or_trim(size)
            self.reserved += size
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        self.count += 1
        return address

    def free(self, address: int, nbytes: int) -> None:
        size = _size_class(nbytes)
        self.allocated -= nbytes
        if size <= _MAX_CACHED_SIZE:
            self._free_lists[size].append(address)
            self.cached_bytes += size
        else:
            self.reserved -= size
            self._deallocate(address)

    def trim(self) -> None:
        """Return all cached memory to the driver."""
        for size, addresses in self._free_lists.items():
            while addresses:
                self._deallocate(addresses.pop())
                self.reserved -= size
        self.cached_bytes = 0

    def stats(self) -> MemoryStats:
        return MemoryStats(self.allocated, self.reserved, self.peak, self.count)

    def _allocate_or_trim(self, size: int) -> int:
        try:
            return self._allocate(size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY or not self.cached_bytes:
                raise
        self.trim()
        return self._allocate(size)


class CudaAllocator(Allocator):
    """Allocates buffers on the current device. `stats` counts device memory, `pinned_stats` page-locked host memory.

    A buffer must be freed only after the work that uses it has completed: its memory is reused immediately.
    """

    def __init__(self, driver: Driver, devices: CudaDevices) -> None:
        self._driver = driver
        self._devices = devices
        self._lock = threading.RLock()  # reentrant: a garbage collection inside `alloc` may release another buffer
        self._pools: dict[tuple[int, MemoryKind], _Pool] = {}
        self._is_closed = False

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        index = self._devices.current()
        device = DeviceId("cuda", index)
        if nbytes < 0:
            raise InvalidArgumentError(f"Cannot allocate {nbytes} bytes on {device}: the size is negative.")
        if kind is MemoryKind.HOST:
            return HostAllocator(device).alloc(nbytes, kind)
        with self._lock:
            context = self._devices.context(index)
            context.enter()
            pool = self._pool(index, kind)
            try:
                address = pool.alloc(nbytes)
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                raise self._out_of_memory(nbytes, kind, device, pool) from error
            context.register(kind, address)

        def free(address: int) -> None:
            pool.free(address, nbytes)
            if self._is_closed:
                pool.trim()

        def release() -> None:
            with self._lock:
                context.release(kind, address, free)

        is_host = kind is MemoryKind.PINNED
        return Buffer(device, address, nbytes, kind=kind, is_host_accessible=is_host, release=release)

    def footprint(self, nbytes: int) -> int:
        return _size_class(nbytes)

    def stats(self) -> MemoryStats:
        return self._stats(MemoryKind.DEVICE)

    def pinned_stats(self) -> MemoryStats:
        """Statistics of page-locked host memory."""
        return self._stats(MemoryKind.PINNED)

    def pressure(self, index: int) -> MemoryPressure:
        """Memory of a device, including other processes."""
        with self._lock:
            self._devices.enter(index)
            return MemoryPressure(*self._driver.memory_info(), self._pool(index, MemoryKind.DEVICE).cached_bytes)

    def trim(self) -> None:
        """Return cached memory to the driver."""
        with self._lock:
            for (index, _), pool in self._pools.items():
                self._devices.enter(index)
                pool.trim()

    def close(self) -> None:
        """Return cached memory; buffers in use are returned when they are freed."""
        self.trim()
        self._is_closed = True

    def _pool(self, index: int, kind: MemoryKind) -> _Pool:
        if (index, kind) not in self._pools:
            driver = self._driver
            is_device = kind is MemoryKind.DEVICE
            calls = (driver.mem_alloc, driver.mem_free) if is_device else (driver.host_alloc, driver.host_free)
            self._pools[index, kind] = _Pool(*calls)
        return self._pools[index, kind]

    def _stats(self, kind: MemoryKind) -> MemoryStats:
        with self._lock:
            pools = [pool.stats() for (_, pool_kind), pool in self._pools.items() if pool_kind is kind]
        return MemoryStats(
            sum(stats.allocated_bytes for stats in pools),
            sum(stats.reserved_bytes for stats in pools),
            sum(stats.peak_bytes for stats in pools),
            sum(stats.num_allocations for stats in pools),
        )

    def _out_of_memory(self, nbytes: int, kind: MemoryKind, device: DeviceId, pool: _Pool) -> OutOfMemoryError:
        if kind is MemoryKind.PINNED:
            return OutOfMemoryError(
                f"Could not allocate {nbytes} bytes of page-locked host memory on {device}: {pool.allocated} are "
                "in use by this process. Lower --swap-space or --max-num-batched-tokens, or raise the limit on locked "
                "memory."
            )
        free, total = self._driver.memory_info()
        return OutOfMemoryError(
            f"Could not allocate {nbytes} bytes on {device}: {free} of its {total} bytes are free, {pool.allocated} "
            "are in use by this process's tensors. Lower --num-kv-blocks or --max-model-len, or choose a smaller model."
        )


def _size_class(nbytes: int) -> int:
    """Round up: small sizes to a power of two, large ones to pages of 2 MiB; at most half is wasted."""
    if nbytes > 1 << 20:
        return -(-nbytes // (2 << 20)) * (2 << 20)
    return max(_MIN_SIZE, 1 << max(0, nbytes - 1).bit_length())
