"""The kinds of arrays that callers have: NumPy's, and torch's without importing torch before the caller did."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType

__all__ = ["Array", "ArrayKind", "NumpyKind", "TorchKind", "kind_of"]

Array = Any
"""A NumPy array or a torch tensor."""


class ArrayKind(Protocol):
    """What eager calls need to know about one library's arrays."""

    def address(self, array: Array) -> int | None:
        """The address of the first element, or None unless the array is row-major, aligned and in host memory."""

    def settled(self, array: Array) -> Array:
        """The array itself, or a copy that has an address. OperatorError for one that cannot be read."""

    def is_writable(self, array: Array) -> bool:
        """Whether the array's elements may be changed."""

    def dtype(self, array: Array) -> DType:
        """The element type; InvalidArgumentError where we have none for it."""

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        """What makes an array whose elements are not set."""

    def numpy(self, array: Array) -> Any:
        """A NumPy array on the same memory."""


def kind_of(array: Array) -> ArrayKind:
    """The kind of an array; OperatorError for anything else."""
    import numpy as np

    if isinstance(array, np.ndarray):
        return NumpyKind()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return TorchKind(torch)
    raise OperatorError(f"Operators take NumPy arrays and torch tensors, got {type(array).__name__}; convert it first.")


class NumpyKind:
    """`numpy.ndarray`, bfloat16 being that of `ml_dtypes`."""

    def __init__(self) -> None:
        self._data = _data_reader()

    def address(self, array: Array) -> int | None:
        flags = array.flags
        return self._data(array) if flags.c_contiguous and flags.aligned else None

    def settled(self, array: Array) -> Array:
        import numpy as np

        return np.require(array, None, ["C_CONTIGUOUS", "ALIGNED"])

    def is_writable(self, array: Array) -> bool:
        return bool(array.flags.writeable)

    def dtype(self, array: Array) -> DType:
        return DType.of_numpy(array.dtype)

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        import numpy as np

        empty, numpy_dtype = np.empty, dtype.numpy
        return lambda: empty(shape, numpy_dtype)

    def numpy(self, array: Array) -> Any:
        return array


class TorchKind:
    """`torch.Tensor` in host memory. Nothing is differentiated through."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def address(self, array: Array) -> int | None:
        if not array.is_cpu or not array.is_contiguous() or array.requires_grad:
            return None
        address: int = array.data_ptr()
        return address

    def settled(self, array: Array) -> Array:
        if not array.is_cpu or array.layout is not self._torch.strided:
            raise OperatorError(
                f"Operators take dense torch tensors in host memory, got {array.layout} on {array.device}; "
                "convert it with .to_dense() or .cpu() first."
            )
        if array.requires_grad and self._torch.is_grad_enabled():
            raise OperatorError(
                "A torch tensor requires gradients, and operators are not differentiated; "
                "pass tensor.detach(), or call within torch.no_grad()."
            )
        return array.detach().contiguous()

    def is_writable(self, array: Array) -> bool:
        return True

    def dtype(self, array: Array) -> DType:
        return DType.parse(str(array.dtype).removeprefix("torch."))

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        empty, torch_dtype = self._torch.empty, getattr(self._torch, dtype.label)
        return lambda: empty(shape, dtype=torch_dtype)

    def numpy(self, array: Array) -> Any:
        dtype = self.dtype(array)
        if dtype in (DType.BFLOAT16, DType.FLOAT8_E4M3FN):  # which NumPy knows by another package
            integers = self._torch.int16 if dtype is DType.BFLOAT16 else self._torch.int8
            return array.view(integers).numpy().view(dtype.numpy)
        return array.numpy()


@cache
def _data_reader() -> Callable[[Array], int]:
    """`array.ctypes.data`, which costs a microsecond, or what costs a sixth of it.

    NumPy's C interface promises that the pointer to the elements follows the object's header.
    """
    import numpy as np

    offset, pointer_at = object.__basicsize__, ctypes.c_size_t.from_address

    def read(array: Array) -> int:
        return pointer_at(id(array) + offset).value

    probes: list[Array] = [np.zeros(3), np.zeros((2, 5), np.int8)[1:], np.zeros(8, np.uint8).view(np.float64)]
    is_as_promised = sys.implementation.name == "cpython" and all(read(array) == array.ctypes.data for array in probes)
    return read if is_as_promised else lambda array: int(array.ctypes.data)
