"""Device memory: buffers, and allocators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from aethermind.errors import DeviceError
from aethermind.hal.device import DeviceId

__all__ = ["ALIGNMENT", "Allocator", "Buffer", "MemoryCounter", "MemoryKind", "MemoryStats", "align_up"]


class MemoryKind(Enum):
    """The kind of memory of a buffer, seen from its device; PINNED is page-locked host memory."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"


class Buffer:
    """`nbytes` bytes at `address`, freed once: by `free()`, or with the last reference.

    Freeing does not wait for work that still uses the buffer, and the memory may be allocated again at once. So the
    caller synchronises the streams that use it before it frees the buffer or drops the last reference.

    `address` is a device address; the host may dereference it only where `is_host_accessible`. `owner` is an object
    that keeps the memory alive (a mapped file, an array). A buffer without `release` is borrowed: it cannot be freed.
    """

    __slots__ = (
        "__weakref__",
        "_release",
        "address",
        "device",
        "is_freed",
        "is_host_accessible",
        "kind",
        "nbytes",
        "owner",
    )

    def __init__(
        self,
        device: DeviceId,
        address: int,
        nbytes: int,
        *,
        kind: MemoryKind = MemoryKind.DEVICE,
        is_host_accessible: bool,
        release: Callable[[], None] | None = None,
        owner: object = None,
    ) -> None:
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self.kind = kind
        self.is_host_accessible = is_host_accessible
        self.owner = owner
        self.is_freed = False
        self._release = release

    def __repr__(self) -> str:
        return f"Buffer({self.device}, {self.nbytes} bytes, {self.kind.value}{', freed' if self.is_freed else ''})"

    def __del__(self) -> None:
        release = getattr(self, "_release", None)
        if release is not None:
            self._release = None
            release()

    def free(self) -> None:
        """Free the memory now; no view of it may be used afterwards. The caller waits for work on it first.

        DeviceError for a buffer that was freed already or is borrowed.
        """
        if self._release is None:
            raise DeviceError(f"{self!r} was freed already or is borrowed; free only what was allocated, and once.")
        release, self._release = self._release, None
        self.address = 0
        self.owner = None
        self.is_freed = True
        release()


ALIGNMENT = 64
"""The alignment of every allocation, in bytes: a cache line, and the widest vector register in use."""


def align_up(size: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` that is at least `size`."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes allocated now, bytes reserved from the system, peak of allocated bytes, and number of allocations."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    num_allocations: int


class MemoryCounter:
    """The statistics of an allocator that reserves no more than it has allocated. Not thread-safe: the caller locks.

    Counts are plain integers: allocating an object to replace them could trigger a garbage collection that frees a
    buffer, and would then overwrite what that counted.
    """

    __slots__ = ("_allocated", "_num_allocations", "_peak")

    def __init__(self) -> None:
        self._allocated = self._peak = self._num_allocations = 0

    def add(self, nbytes: int) -> None:
        """Count one allocation."""
        self._allocated += nbytes
        self._peak = max(self._peak, self._allocated)
        self._num_allocations += 1

    def remove(self, nbytes: int) -> None:
        """Count one deallocation."""
        self._allocated -= nbytes

    def stats(self) -> MemoryStats:
        """Return the counts so far."""
        return MemoryStats(self._allocated, self._allocated, self._peak, self._num_allocations)


class Allocator(ABC):
    """Allocates buffers of one device. Safe to call from several threads."""

    @abstractmethod
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate `nbytes` (0 is allowed) on the current device, at a multiple of ALIGNMENT; contents are undefined.

        OutOfMemoryError says how much was asked for, how much there is and what to lower; InvalidArgumentError for a
        negative size.
        """

    @property
    def places_weights(self) -> bool:
        """Whether packed weights lie on the NUMA nodes of the threads that read them, so mapped ones are copied."""
        return False

    def alloc_weight(self, nbytes: int) -> Buffer:
        """Optional: allocate memory for a packed weight, whose rows follow each other. Raises like `alloc`."""
        return self.alloc(nbytes)

    def alloc_ahead(self, sizes: Sequence[int]) -> list[Buffer]:
        """Optional: allocate packed weights of these sizes and prefault their pages in the background.

        Returns an empty list where there are no pages to prefault, or not enough memory for all: the caller then
        allocates them one by one.
        """
        return []

    def make_ready(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Optional: prefault the first `nbytes` of buffers in the background; their contents do not change."""
        return None

    def discard(self, buffer: Buffer, begin: int, nbytes: int) -> int:
        """Optional: return memory of a buffer, `nbytes` from `begin` on, to the system until it is written again.

        Its contents are undefined then. Returns the number of bytes, which are in whole pages; 0 where an allocation is
        kept as a whole.
        """
        return 0

    def footprint(self, nbytes: int) -> int:
        """Return the bytes of device memory that a buffer of `nbytes` takes: more where sizes are rounded up."""
        return nbytes

    @abstractmethod
    def stats(self) -> MemoryStats:
        """Return the allocation statistics."""
