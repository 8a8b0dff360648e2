"""Tensors: typed, strided views of buffers. They have no arithmetic; strides are in elements."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.memory import Buffer, MemoryKind

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Tensor", "contiguous_strides", "is_contiguous", "num_elements", "num_spanned"]


def num_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape (1 for a scalar)."""
    return math.prod(shape)


def num_spanned(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one, gaps included; strides are not negative."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements are in row-major order without gaps; axes of length one may have any stride."""
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`shape` elements of `dtype`, `offset_bytes` into `buffer`; `strides` are in elements."""

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int = 0

    @classmethod
    def of(cls, buffer: Buffer, dtype: DType, shape: Sequence[int], offset_bytes: int = 0) -> Tensor:
        """Return a row-major contiguous view; InvalidArgumentError when it would reach beyond the buffer."""
        needed = offset_bytes + num_elements(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or offset_bytes < 0 or needed > buffer.nbytes:
            raise InvalidArgumentError(
                f"A {dtype} tensor of shape {tuple(shape)} at byte {offset_bytes} does not fit {buffer!r}."
            )
        return cls(buffer, dtype, tuple(shape), contiguous_strides(shape), offset_bytes)

    @classmethod
    def of_numpy(cls, array: np.ndarray[Any, Any], device: DeviceId) -> Tensor:
        """Return a view of an array's memory, without a copy; the tensor keeps the array alive.

        InvalidArgumentError for negative strides, and for strides that are not multiples of the item size.
        """
        dtype = DType.of_numpy(array.dtype)
        if any(stride < 0 or stride % array.itemsize for stride in array.strides):
            raise InvalidArgumentError(
                f"An array with strides of {array.strides} bytes cannot be a tensor; copy it first."
            )
        strides = tuple(stride // array.itemsize for stride in array.strides)
        nbytes = num_spanned(array.shape, strides) * array.itemsize
        buffer = Buffer(device, array.ctypes.data, nbytes, kind=MemoryKind.HOST, is_host_accessible=True, owner=array)
        return cls(buffer, dtype, array.shape, strides)

    @property
    def address(self) -> int:
        """The device address of the first element; DeviceError when the buffer was freed."""
        if self.buffer.is_freed:
            raise DeviceError(f"{self.buffer!r} cannot be used any more.")
        return self.buffer.address + self.offset_bytes

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, without gaps."""
        return num_elements(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return is_contiguous(self.shape, self.strides)

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """Return a view of other shape; InvalidArgumentError unless this is contiguous and has as many elements."""
        if not self.is_contiguous or num_elements(shape) != num_elements(self.shape):
            raise InvalidArgumentError(
                f"A tensor of shape {self.shape} and strides {self.strides} cannot be viewed as {tuple(shape)}."
            )
        return Tensor(self.buffer, self.dtype, tuple(shape), contiguous_strides(shape), self.offset_bytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements as a NumPy array on the same memory, which it keeps alive.

        DeviceError where the memory is not host accessible, or when the buffer was freed.
        """
        import numpy as np

        if not self.buffer.is_host_accessible:
            raise DeviceError(f"{self.buffer!r} is not host memory; copy it with the backend's DataTransfer first.")
        itemsize = self.dtype.itemsize
        memory = (ctypes.c_byte * (num_spanned(self.shape, self.strides) * itemsize)).from_address(self.address)
        memory.owner = self.buffer  # type: ignore[attr-defined]  # the array's base is `memory`: the buffer outlives it
        return np.ndarray(
            self.shape,
            self.dtype.numpy,
            buffer=memoryview(memory),
            strides=[stride * itemsize for stride in self.strides],
        )

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Export through DLPack; for host memory only, other memory by `hal.dlpack.ExportedTensor`."""
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of `__dlpack__`: (kDLCPU, 0)."""
        return (1, 0)
