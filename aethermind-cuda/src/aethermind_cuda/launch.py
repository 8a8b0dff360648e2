"""Launch descriptions: what a kernel function gets and what it returns to be enqueued."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aethermind.hal.dtype import DType

if TYPE_CHECKING:
    from aethermind_cuda.cublas import CublasLt
    from aethermind_cuda.nccl import NcclCommunicator

__all__ = [
    "Call",
    "Context",
    "DeviceArray",
    "DeviceFacts",
    "Enqueue",
    "Int64",
    "KernelFunction",
    "Launch",
    "Relocate",
    "Work",
]

Enqueue = Callable[[int], None]
"""Enqueues work on a stream, given by the driver's handle."""

Relocate = Callable[[Sequence[int]], Enqueue]
"""Binds work to the addresses of a call: present inputs, outputs and workspace, each rounded down to a multiple of
`relocation.ALIGNMENT`.
"""


class Int64(ctypes.c_int64):
    """A 64-bit integer argument; a plain int is passed as 32 bits."""


class DeviceArray(NamedTuple):
    """An operand: a contiguous row-major tensor in device memory with concrete dims."""

    address: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * self.dtype.itemsize

    def is_followed_by(self, other: DeviceArray) -> bool:
        """Whether `other` begins where this array ends, so that it may be its next rows."""
        return other.address == self.address + self.nbytes


class DeviceFacts(NamedTuple):
    """Device properties that launches depend on; `shared_bytes` is the limit of dynamic shared memory per block."""

    compute_capability: tuple[int, int]
    num_multiprocessors: int
    shared_bytes: int


class Call(NamedTuple):
    """One call of an operator: operands in schema order (None where absent), and a workspace.

    `workspace` is the address of at least `workspace_bytes` of the kernel; the steps of a plan share it.
    """

    inputs: tuple[DeviceArray | None, ...]
    outputs: tuple[DeviceArray, ...]
    attributes: Mapping[str, Any]
    device: DeviceFacts
    workspace: int = 0


class Context(Protocol):
    """Binds launches to a device; implemented by `library.KernelLibrary`."""

    @property
    def cublas(self) -> CublasLt:
        """cuBLASLt on this device."""

    @property
    def collectives(self) -> NcclCommunicator:
        """The communicator of this device's rank."""

    def bind_launch(self, launch: Launch) -> Enqueue:
        """Bind a launch: returns a function that enqueues it on a stream."""

    def bind_relocatable(self, launch: Launch) -> Relocate | None:
        """As `bind_launch` with symbolic addresses; None where arguments may contain an address that cannot be
        found.
        """


class Work(Protocol):
    """Work that can be enqueued on a stream.

    Work with a method `bind_relocatable(context)` is bound once, with symbolic addresses (see `relocation`), for calls
    that differ in their addresses only. The method returns None where the work cannot be relocated.
    """

    def bind(self, context: Context) -> Enqueue:
        """Precompute the launch; returns a function that enqueues it on a stream."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `kernel` is the name of an entry point of `csrc/<source>.cu`.

    Arguments are DeviceArrays (passed as address; None is a null pointer), ints (32 bits), floats (32 bits) and ctypes
    values including structures, passed unchanged. An empty grid launches nothing.

    `overlaps` states that the kernel synchronises with its predecessor itself (`csrc/common/overlap.cuh`, as all
    kernels of this package do), so that in a graph it may be launched while the predecessor runs.
    """

    source: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    overlaps: bool = True

    def bind(self, context: Context) -> Enqueue:
        """See `Work`."""
        return context.bind_launch(self)

    def bind_relocatable(self, context: Context) -> Relocate | None:
        """See `Work`."""
        return context.bind_relocatable(self)


class KernelFunction(NamedTuple):
    """The `Kernel.function` of this device: returns the work to enqueue and computes nothing itself.

    `workspace_bytes` is called with the largest sizes of a plan and must suffice for smaller ones.

    With `is_relocatable`, steps that differ in their addresses only (the layers of a model) share one call with
    symbolic addresses. Launches may then depend on the alignment of addresses (up to 256 bytes), on which are equal,
    and on which constants begin where others end, but not on their values. An address, plus an offset, is passed as a
    DeviceArray, a `c_void_p`, or such a field of a structure.

    With `has_heuristics` a library chooses the algorithm, which is slow for a size that it has not seen.
    """

    launches: Callable[[Call], Iterable[Work]]
    workspace_bytes: Callable[[Call], int] = lambda _: 0
    is_relocatable: bool = False
    has_heuristics: bool = False

    def __call__(self, call: Call) -> Iterable[Work]:
        """Return the work of one call, in order."""
        return self.launches(call)
