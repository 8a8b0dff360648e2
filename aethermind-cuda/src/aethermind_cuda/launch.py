"""What is launched, and what a kernel's function is told to decide it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aethermind.hal.dtype import DType

if TYPE_CHECKING:
    from aethermind_cuda.cublas import CublasLt

__all__ = ["Call", "DeviceArray", "DeviceFacts", "Int64", "KernelFunction", "Launch", "Parameters", "Work"]

_INT32 = range(-(2**31), 2**31)


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

    def bind_launch(self, launch: Launch) -> Callable[[int], None]:
        """A function of a stream that launches."""


class Work(Protocol):
    """Something that a stream can do."""

    def bind(self, context: Context) -> Callable[[int], None]:
        """What enqueues it on a stream: all that can be decided before is decided now."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `kernel` is the name of an entry point of `csrc/<source>.cu`.

    Arguments are DeviceArrays (their address; None is a null pointer), ints (32 bits), floats (32 bits) and values of
    ctypes, structures among them, which go as they are. A grid without a block launches nothing.
    """

    source: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0

    def bind(self, context: Context) -> Callable[[int], None]:
        """See `Work`."""
        return context.bind_launch(self)


class KernelFunction(NamedTuple):
    """What stands in `Kernel.function` on this device: it says what to enqueue and computes nothing.

    `workspace_bytes` is asked with the largest sizes of a plan, and has to be enough for smaller ones.
    """

    launches: Callable[[Call], Iterable[Work]]
    workspace_bytes: Callable[[Call], int] = lambda _: 0

    def __call__(self, call: Call) -> Iterable[Work]:
        """The work of one call, in order."""
        return self.launches(call)


class Parameters:
    """Arguments as the driver takes them: an array of pointers to their values, kept alive together.

    `address` is that of the array. TypeError and OverflowError for what no kernel takes.
    """

    def __init__(self, arguments: Iterable[Any]) -> None:
        self._values = [_packed(argument) for argument in arguments]
        addresses = (ctypes.addressof(value) for value in self._values)
        self._pointers = (ctypes.c_void_p * max(1, len(self._values)))(*addresses)
        self.address = ctypes.addressof(self._pointers)


def _packed(argument: Any) -> Any:
    """A ctypes value of the kind that the kernel's parameter has."""
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, DeviceArray):
        return ctypes.c_void_p(argument.address)
    if isinstance(argument, (bool, int)):
        if argument not in _INT32:
            raise OverflowError(f"A kernel's argument {argument} has more than 32 bits; pass it as Int64.")
        return ctypes.c_int32(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return argument
    raise TypeError(f"A kernel cannot take a {type(argument).__name__} as its argument.")
