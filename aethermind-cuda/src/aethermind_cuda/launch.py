"""What is launched, and what a kernel's function is told to decide it."""

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
"""Puts work on a stream, by the driver's handle."""

Relocate = Callable[[Sequence[int]], Enqueue]
"""Binds work to the addresses of a call: those of the inputs that are there, of the outputs, and of the workspace, each
rounded down to a multiple of `relocation.ALIGNMENT`.
"""


class Int64(ctypes.c_int64):
    """Marks an argument that the kernel takes as 64-bit integer; a plain int is a 32-bit one."""


class DeviceArray(NamedTuple):
    """An operand: a row-major contiguous tensor in device memory, its dims numbers."""

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

    def is_before(self, other: DeviceArray) -> bool:
        """Whether another array begins where this one ends: `other` may be its next rows."""
        return other.address == self.address + self.nbytes


class DeviceFacts(NamedTuple):
    """What launches depend on; `shared_bytes` is the most dynamic shared memory that a block can have."""

    compute_capability: tuple[int, int]
    num_multiprocessors: int
    shared_bytes: int


class Call(NamedTuple):
    """One call of an operator: operands in schema order (None where absent), and room for intermediate results.

    `workspace` is the address of as many bytes as the kernel's `workspace_bytes` said; steps share it in turn.
    """

    inputs: tuple[DeviceArray | None, ...]
    outputs: tuple[DeviceArray, ...]
    attributes: Mapping[str, Any]
    device: DeviceFacts
    workspace: int = 0


class Context(Protocol):
    """Where work becomes ready to be enqueued, see `library.KernelLibrary`."""

    @property
    def cublas(self) -> CublasLt:
        """The library of dense products on this device."""

    @property
    def collectives(self) -> NcclCommunicator:
        """The ranks that this device's is one of."""

    def bind_launch(self, launch: Launch) -> Enqueue:
        """A function of a stream that launches."""

    def bind_relocatable(self, launch: Launch) -> Relocate | None:
        """The same for a launch whose addresses are symbolic; None where its arguments may hide an address."""


class Work(Protocol):
    """Something that a stream can do.

    Work with a method `bind_relocatable(context)` is bound once for calls that differ in their addresses only: its own
    addresses are symbolic then (see `relocation`). It returns None where it cannot be relocated after all.
    """

    def bind(self, context: Context) -> Enqueue:
        """What enqueues it on a stream: all that can be decided before is decided now."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `kernel` is the name of an entry point of `csrc/<source>.cu`.

    Arguments are DeviceArrays (their address; None is a null pointer), ints (32 bits), floats (32 bits) and values of
    ctypes, structures among them, which go as they are. A grid without a block launches nothing.

    `overlaps` says that the kernel waits for the one before it by itself (`csrc/common/overlap.cuh`, as all of this
    package do), so that in a graph it may be launched while that one runs.
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
    """What stands in `Kernel.function` on this device: it says what to enqueue and computes nothing.

    `workspace_bytes` is asked with the largest sizes of a plan, and has to be enough for smaller ones.

    With `is_relocatable`, steps that differ in their addresses only (the layers of a model) share one call, whose
    addresses are symbolic. What is launched may then depend on the alignment of addresses, up to 256 bytes, on which of
    them are equal, and on which constants begin where others end, but not on their values. An address, or one with a
    number of bytes added, is passed as a DeviceArray, a `c_void_p`, or such a field of a structure.

    With `has_heuristics` a library chooses what is launched, which takes it long for a size that it has not seen.
    """

    launches: Callable[[Call], Iterable[Work]]
    workspace_bytes: Callable[[Call], int] = lambda _: 0
    is_relocatable: bool = False
    has_heuristics: bool = False

    def __call__(self, call: Call) -> Iterable[Work]:
        """The work of one call, in order."""
        return self.launches(call)
