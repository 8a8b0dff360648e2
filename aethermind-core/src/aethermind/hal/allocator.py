"""Device memory, counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from aethermind.hal.buffer import Buffer, MemoryKind

__all__ = ["ALIGNMENT", "Allocator", "MemoryCounter", "MemoryStats"]

ALIGNMENT = 64
"""Bytes that every allocation is aligned to: a cache line, and the widest vector register in use."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes handed out now, bytes held from the system, the most ever handed out, and allocations made so far."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    num_allocations: int


class MemoryCounter:
    """What one device's part of an allocator handed out, if that holds no more from the system; the caller locks.

    Counts are plain numbers: an object made to replace them could set off a garbage collection that frees a buffer, and
    would then undo what that counted.
    """

    __slots__ = ("_allocated", "_num_allocations", "_peak")

    def __init__(self) -> None:
        self._allocated = self._peak = self._num_allocations = 0

    def add(self, nbytes: int) -> None:
        """One more allocation."""
        self._allocated += nbytes
        self._peak = max(self._peak, self._allocated)
        self._num_allocations += 1

    def remove(self, nbytes: int) -> None:
        """It was freed."""
        self._allocated -= nbytes

    def stats(self) -> MemoryStats:
        """What was counted so far."""
        return MemoryStats(self._allocated, self._allocated, self._peak, self._num_allocations)


class Allocator(ABC):
    """Hands out buffers of one device. Safe to call from several threads."""

    @abstractmethod
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """A buffer of `nbytes` (0 is allowed) on the current device, at a multiple of ALIGNMENT. Contents: undefined.

        OutOfMemoryError says how much was wanted, how much there is and what to lower; a negative size is an
        InvalidArgumentError.
        """

    def alloc_ahead(self, sizes: Sequence[int]) -> list[Buffer]:
        """Buffers of these sizes that will be written as a whole, made ready while the caller does something else.

        None of them where there is nothing to make ready, or no room for all: who asked then allocates one by one.
        """
        return []

    def make_ready(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Have the first `nbytes` of buffers made ready to be used, while the caller does something else. Optional:
        does nothing where there is nothing to make ready; changes no byte where there is.
        """
        return None

    def footprint(self, nbytes: int) -> int:
        """Bytes of the device that a buffer of `nbytes` takes: more where sizes are rounded up."""
        return nbytes

    @abstractmethod
    def stats(self) -> MemoryStats:
        """What this allocator has handed out so far."""
