"""Allocator of the CPU device: aligned blocks, large ones on huge pages, with statistics."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.hal.device import DeviceId
from aethermind.hal.host_memory import discard_pages
from aethermind.hal.memory import Allocator, Buffer, MemoryKind, MemoryStats
from aethermind_cpu import _native
from aethermind_cpu.devices import available_memory_bytes, total_memory_bytes
from aethermind_cpu.numa import MemoryPlacement

__all__ = ["CpuAllocator"]

_MIN_CHECKED_BYTES = 64 << 20
"""Larger allocations check free memory first: Linux overcommits, and kills processes that use too much."""


class CpuAllocator(Allocator):
    """Allocates host memory for every kind of buffer. Pages are not touched on allocation."""

    def __init__(self, device: DeviceId) -> None:
        self._device = device
        self._native = _native.Allocator()
        self.placement: MemoryPlacement | None = None
        """Where later allocations lie; None leaves it to the system."""

    @property
    def places_weights(self) -> bool:
        return self.placement is not None

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        buffer = self._alloc(nbytes, kind)
        if self.placement is not None:
            self.placement.interleave(buffer.address, nbytes)
        return buffer

    def alloc_weight(self, nbytes: int) -> Buffer:
        buffer = self._alloc(nbytes)
        if self.placement is not None:
            self.placement.place_weight(buffer.address, nbytes)
        return buffer

    def _alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        if nbytes < 0:
            raise InvalidArgumentError(f"Cannot allocate {nbytes} bytes on {self._device}: the size is negative.")
        if nbytes >= _MIN_CHECKED_BYTES and nbytes > available_memory_bytes():
            raise self._out_of_memory(nbytes)
        address = self._native.allocate(nbytes)
        if address == 0:
            raise self._out_of_memory(nbytes)
        native = self._native
        return Buffer(
            self._device,
            address,
            nbytes,
            kind=kind,
            is_host_accessible=True,
            release=lambda: native.release(address, nbytes),
        )

    def alloc_ahead(self, sizes: Sequence[int]) -> list[Buffer]:
        """Allocate buffers, and touch their pages in a thread, because page faults take longer than writing the memory.

        Returns an empty list if there is not enough memory for all of `sizes`.
        """
        if sum(sizes) > available_memory_bytes():
            return []
        buffers = [self.alloc_weight(nbytes) for nbytes in sizes]
        self.make_ready(buffers, max(sizes, default=0))
        return buffers

    def make_ready(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Touch the first `nbytes` of each buffer in a thread (see `Allocator`)."""

        def touch() -> None:
            _native.touch_pages([(buffer.address, min(buffer.nbytes, nbytes)) for buffer in buffers])

        threading.Thread(target=touch, name="aethermind-touch", daemon=True).start()

    def discard(self, buffer: Buffer, begin: int, nbytes: int) -> int:
        """Return whole pages of a buffer to the system (see `Allocator`)."""
        assert 0 <= begin <= begin + nbytes <= buffer.nbytes, "the range is within the buffer"
        return discard_pages(buffer.address + begin, nbytes)

    def stats(self) -> MemoryStats:
        return MemoryStats(*self._native.stats())

    def _out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        in_use = self.stats().allocated_bytes
        return OutOfMemoryError(
            f"Could not allocate {_gib(nbytes)} on {self._device}: {_gib(available_memory_bytes())} of "
            f"{_gib(total_memory_bytes())} are free, {_gib(in_use)} are in use by this process's tensors. "
            "Lower --max-model-len or the number of KV blocks, choose a smaller model, or close other programs."
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB"
