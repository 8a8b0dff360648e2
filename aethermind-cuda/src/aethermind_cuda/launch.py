"""The interface of kernel functions: the `Call` that they get, and the `Work` that they return to be enqueued."""

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
    "DeviceArray",
    "DeviceFacts",
    "Enqueue",
    "Int64",
    "KernelFunction",
    "Launch",
    "LaunchBinder",
    "Relocate",
    "TensorMap",
    "Work",
]

Enqueue = Callable[[int], None]
"""Enqueues work on a stream, given as its driver handle (CUstream)."""

Relocate = Callable[[Sequence[int]], Enqueue]
"""Binds work to the addresses of a call (its non-None inputs, outputs, workspace), each rounded down to a multiple of
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
        """Whether `other` begins where this array ends, so that both can be read as one array."""
        return other.address == self.address + self.nbytes


class TensorMap(NamedTuple):
    """A row-major matrix of 16-bit elements from which a kernel copies tiles by the tensor memory accelerator (compute
    capability 9.0 and later), as the CUtensorMap of the driver.

    Tiles have `box_rows` rows (at most 256) of 64 elements, and arrive in the 128-byte swizzle. Address and rows are
    multiples of 16 bytes.
    """

    address: int
    rows: int
    columns: int
    box_rows: int


class DeviceFacts(NamedTuple):
    """Device properties that launches depend on.

    Attributes:
        compute_capability: major and minor number.
        num_multiprocessors: multiprocessors.
        shared_bytes: the limit of dynamic shared memory per block.
        max_clusters: says how many clusters of a launch run at once (`KernelLibrary.max_clusters`); None where no
            driver is asked, and all multiprocessors are taken to run some.
    """

    compute_capability: tuple[int, int]
    num_multiprocessors: int
    shared_bytes: int
    max_clusters: Callable[[Launch], int] | None = None


class Call(NamedTuple):
    """One call of an operator: operands in schema order (None where absent), and a workspace.

    `workspace` is the address of a buffer of at least the kernel's `workspace_bytes`; the steps of a plan share it.
    """

    inputs: tuple[DeviceArray | None, ...]
    outputs: tuple[DeviceArray, ...]
    attributes: Mapping[str, Any]
    device: DeviceFacts
    workspace: int = 0


class LaunchBinder(Protocol):
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
        """Bind a launch with symbolic addresses; returns None if arguments may contain an address that cannot be
        found.
        """


class Work(Protocol):
    """Work that can be enqueued on a stream.

    Work with a method `bind_relocatable(binder)` is bound once, with symbolic addresses (see `relocation`), for calls
    that differ in their addresses only. The method returns None where the work cannot be relocated.
    """

    def bind(self, binder: LaunchBinder) -> Enqueue:
        """Precompute the launch; returns a function that enqueues it on a stream."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `kernel` is the name of an entry point of `csrc/<source>.cu`.

    Arguments are DeviceArrays (passed as address; None is a null pointer), TensorMaps, ints (32 bits), floats (32 bits)
    and ctypes values including structures, passed unchanged. An empty grid launches nothing.

    `is_dependent_launch`: programmatic dependent launch. The kernel waits for its predecessor itself
    (`dependent_launch.cuh`, as all kernels of this package do), so that in a graph it may begin while that runs.
    """

    source: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    is_dependent_launch: bool = True

    def bind(self, binder: LaunchBinder) -> Enqueue:
        """See `Work`."""
        return binder.bind_launch(self)

    def bind_relocatable(self, binder: LaunchBinder) -> Relocate | None:
        """See `Work`."""
        return binder.bind_relocatable(self)


class KernelFunction(NamedTuple):
    """A `Kernel.function` for CUDA: it returns the work to enqueue and computes nothing itself.

    `workspace_bytes` is called with the largest sizes of a plan and must suffice for smaller ones.

    With `is_relocatable`, steps that differ in their addresses only (the layers of a model) share one call with
    symbolic addresses. Launches may then depend on the alignment of addresses (up to 256 bytes), on which
    of them are equal, and on which constants are adjacent in memory, but not on the values of addresses. An address,
    plus an offset, is passed as a DeviceArray, a TensorMap, a `c_void_p`, or a `c_void_p` field of a structure.

    With `has_heuristics` a library (cuBLASLt) chooses the algorithm, which is slow for a new size.
    """

    launches: Callable[[Call], Iterable[Work]]
    workspace_bytes: Callable[[Call], int] = lambda _: 0
    is_relocatable: bool = False
    has_heuristics: bool = False

    def __call__(self, call: Call) -> Iterable[Work]:
        """Return the work of one call, in order."""
        return self.launches(call)
