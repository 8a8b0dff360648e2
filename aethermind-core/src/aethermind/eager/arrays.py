"""The kinds of arrays that eager calls accept: NumPy arrays, torch tensors and packed weights.

torch is never imported: an array can be a torch tensor only if its caller has imported torch.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.hal.memory import MemoryKind
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.dispatch.kernel import Pack
    from aethermind.hal.backend import Backend
    from aethermind.hal.memory import Buffer
    from aethermind.ops.operator import Operator

__all__ = [
    "Array",
    "ArrayKind",
    "NotInHostMemoryError",
    "NumpyKind",
    "PackedKind",
    "PackedWeight",
    "TensorKind",
    "TorchKind",
    "kind_of",
    "pack_into",
    "pack_weight",
]

Array = Any
"""A NumPy array, a torch tensor, or a tensor in a device's memory."""


class NotInHostMemoryError(OperatorError):
    """An array is in the memory of a device, and the call is for arrays in host memory."""


class ArrayKind(Protocol):
    """The interface of eager calls to one library's arrays."""

    def address(self, array: Array) -> int | None:
        """Return the address of the first element; None unless the array is row-major, aligned and in host memory."""

    def settled(self, array: Array) -> Array:
        """Return the array itself, or a copy that has an address. OperatorError for one that cannot be read."""

    def is_writable(self, array: Array) -> bool:
        """Whether the array may be written to."""

    def dtype(self, array: Array) -> DType:
        """Return the element type; InvalidArgumentError for one that operators do not have."""

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        """Return a function that makes an uninitialised array."""

    def numpy(self, array: Array) -> Any:
        """Return a NumPy array on the same memory."""


def kind_of(array: Array) -> ArrayKind:
    """Return the kind of an array; OperatorError for any other object."""
    import numpy as np

    if isinstance(array, np.ndarray):
        return NumpyKind()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return TorchKind(torch)
    raise OperatorError(f"Operators take NumPy arrays and torch tensors, got {type(array).__name__}; convert it first.")


class NumpyKind:
    """`numpy.ndarray`; bfloat16 and float8 are dtypes of `ml_dtypes`."""

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
    """`torch.Tensor` in host memory, without automatic differentiation."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def address(self, array: Array) -> int | None:
        if not array.is_cpu or not array.is_contiguous() or array.requires_grad:
            return None
        address: int = array.data_ptr()
        return address

    def settled(self, array: Array) -> Array:
        if not array.is_cpu:
            raise NotInHostMemoryError(
                f"A torch tensor is on {array.device}, and no installed backend computes there; call .cpu() first."
            )
        if array.layout is not self._torch.strided:
            raise OperatorError(f"Operators take dense torch tensors, got {array.layout}; call .to_dense() first.")
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
        if dtype in (DType.BFLOAT16, DType.FLOAT8_E4M3FN):  # these dtypes are those of ml_dtypes in NumPy
            integers = self._torch.int16 if dtype is DType.BFLOAT16 else self._torch.int8
            return array.view(integers).numpy().view(dtype.numpy)
        return array.numpy()


class TensorKind:
    """`hal.Tensor` in the memory of one device."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def address(self, array: Array) -> int | None:
        address: int | None = array.address if array.is_contiguous else None
        return address

    def settled(self, array: Array) -> Array:
        raise OperatorError(
            f"Operators take row-major tensors, got shape {array.shape} with strides {array.strides}; copy it first."
        )

    def is_writable(self, array: Array) -> bool:
        return True

    def dtype(self, array: Array) -> DType:
        dtype: DType = array.dtype
        return dtype

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        alloc, nbytes = self._backend.allocator.alloc, math.prod(shape) * dtype.itemsize
        return lambda: Tensor.of(alloc(nbytes), dtype, shape)

    def numpy(self, array: Array) -> Any:
        """Return a copy in host memory."""
        import numpy as np

        copied = np.empty(array.shape, array.dtype.numpy)
        self._backend.transfer.copy(Tensor.of_numpy(copied, array.buffer.device), array)
        return copied


@cache
def _data_reader() -> Callable[[Array], int]:
    """Return a function equivalent to `array.ctypes.data`, which is slow, reading the pointer directly if possible.

    NumPy's C API defines that the pointer to the elements follows the object's header.
    """
    import numpy as np

    offset, pointer_at = object.__basicsize__, ctypes.c_size_t.from_address

    def read(array: Array) -> int:
        return pointer_at(id(array) + offset).value

    probes: list[Array] = [np.zeros(3), np.zeros((2, 5), np.int8)[1:], np.zeros(8, np.uint8).view(np.float64)]
    is_as_defined = sys.implementation.name == "cpython" and all(read(array) == array.ctypes.data for array in probes)
    return read if is_as_defined else lambda array: int(array.ctypes.data)


class PackedWeight:
    """A weight for one input of one operator on one device, passed instead of the array. `Eager.pack` returns it.

    It keeps a reference to the array, which must not change, and packs it when a kernel first needs a layout.
    """

    __slots__ = ("_copies", "_lock", "array", "backend", "dtype", "input", "kind", "operator", "shape")

    def __init__(self, operator: str, input: str, array: Array, kind: ArrayKind, backend: Backend) -> None:
        self.operator = operator
        self.input = input
        self.backend = backend
        self.kind = kind
        self.array = array if kind.address(array) is not None else kind.settled(array)
        self.dtype = array.dtype
        self.shape = array.shape
        self._lock = threading.Lock()
        self._copies: dict[str, Buffer] = {}

    def __repr__(self) -> str:
        return f"<packed {self.dtype} {list(self.shape)} for {self.operator}'s {self.input!r} on {self.backend.name}>"

    def address(self, pack: Pack) -> int:
        """Return the address of the copy in this layout, which is made if there is none."""
        with self._lock:
            copy = self._copies.get(pack.name)
            if copy is None:
                copy = self.backend.allocator.alloc(pack.nbytes(tuple(self.shape), self.kind.dtype(self.array)))
                pack_into(copy, pack, self.kind.numpy(self.array), self.backend)
                self._copies[pack.name] = copy
        return copy.address


class PackedKind:
    """The kind of packed weights for one input; OperatorError for those that were packed for another one."""

    def __init__(self, weight: PackedWeight, operator: str, input: str, backend: Backend) -> None:
        self._kind = weight.kind
        self._operator = operator
        self._input = input
        self._backend = backend
        self._check(weight)

    def address(self, array: Array) -> int | None:
        self._check(array)
        return self._kind.address(array.array)

    def packed_address(self, pack: Pack) -> Callable[[Array], int]:
        """Return a function to the address of a weight's copy in this layout."""

        def address(array: Array) -> int:
            self._check(array)
            copy: int = array.address(pack)
            return copy

        return address

    def settled(self, array: Array) -> Array:
        return array

    def is_writable(self, array: Array) -> bool:
        return False

    def dtype(self, array: Array) -> DType:
        return self._kind.dtype(array.array)

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        return self._kind.new(dtype, shape)

    def numpy(self, array: Array) -> Any:
        return self._kind.numpy(array.array)

    def _check(self, weight: PackedWeight) -> None:
        if weight.backend is self._backend and (weight.operator, weight.input) == (self._operator, self._input):
            return
        raise OperatorError(
            f"The weight was packed for {weight.operator}'s input {weight.input!r} on device {weight.backend.name}, "
            f"but was passed to {self._operator} as {self._input!r} on {self._backend.name}; pack the array for that "
            "again, with the session that calls."
        )


def pack_into(buffer: Buffer, pack: Pack, array: Any, backend: Backend) -> None:
    """Pack a NumPy array into device memory, by way of host memory where the host cannot write there."""
    if buffer.is_host_accessible or not buffer.nbytes:
        pack.pack(array, buffer.address)
        return
    staged = backend.allocator.alloc(buffer.nbytes, MemoryKind.HOST)
    pack.pack(array, staged.address)
    shape = (buffer.nbytes,)
    backend.transfer.copy(Tensor.of(buffer, DType.UINT8, shape), Tensor.of(staged, DType.UINT8, shape))


def pack_weight(operator: Operator, input: str, array: Array, backend: Backend) -> PackedWeight:
    """Pack a weight for repeated calls; OperatorError where the operator has no such weight."""
    weights = {spec.name: spec for spec in operator.schema.inputs if spec.kind == "W"}
    if input not in weights:
        raise OperatorError(
            f"Operator {operator.name} has no weight {input!r} to pack, only {sorted(weights) or 'none'}. "
            f"Signature: {operator.schema.text}"
        )
    kind = TensorKind(backend) if isinstance(array, Tensor) else kind_of(array)
    return PackedWeight(operator.name, input, array, kind, backend)
