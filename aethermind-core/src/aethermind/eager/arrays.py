"""The kinds of arrays that eager calls accept: NumPy arrays, torch tensors, tensors in device memory, packed weights.

torch is imported only to make torch tensors: an array can be a torch tensor only if its caller has imported torch.

For a device with memory of its own, `DeviceArrays` uploads arrays in host memory. A tensor that is in the device's
memory already is used there, whether it is a `hal.Tensor` or another library's (by DLPack). The first array decides
what results are: NumPy arrays, torch tensors on its device, or `hal.Tensor`.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.errors import OperatorError
from aethermind.hal.device import DeviceId
from aethermind.hal.dlpack import HOST, ExportedTensor, tensor_from_dlpack
from aethermind.hal.dtype import DType
from aethermind.hal.memory import MemoryKind
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.dispatch.kernel import Pack
    from aethermind.hal.backend import Backend
    from aethermind.hal.memory import Buffer
    from aethermind.ops.operator import Operator
    from aethermind.runtime import OpenDevice

__all__ = [
    "Array",
    "ArrayKind",
    "DeviceArrays",
    "NotInHostMemoryError",
    "NumpyKind",
    "PackedKind",
    "PackedWeight",
    "TensorKind",
    "TorchKind",
    "dlpack_device",
    "kind_of",
    "pack_into",
    "pack_weight",
]

Array = Any
"""A NumPy array, a torch tensor, or a tensor in a device's memory."""


class NotInHostMemoryError(OperatorError):
    """Raised for an array in the memory of a device in a call for arrays in host memory."""


class ArrayKind(Protocol):
    """One kind of arrays, such as NumPy's: the functions through which eager calls use arrays of the kind."""

    def address(self, array: Array) -> int | None:
        """Return the address of the first element; None unless the array is row-major, aligned and in host memory."""

    def contiguous(self, array: Array) -> Array:
        """Return an array that has an address: itself, or a row-major copy. OperatorError if it cannot be read."""

    def is_writable(self, array: Array) -> bool:
        """Whether the array may be written to."""

    def dtype(self, array: Array) -> DType:
        """Return the element type; InvalidArgumentError for one that operators do not compute with."""

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        """Return a function that makes an uninitialised array."""

    def numpy(self, array: Array) -> Any:
        """Return a NumPy array on the same memory, or a copy of it in host memory."""


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
        self._data_pointer = _data_pointer_reader()

    def address(self, array: Array) -> int | None:
        flags = array.flags
        return self._data_pointer(array) if flags.c_contiguous and flags.aligned else None

    def contiguous(self, array: Array) -> Array:
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

    def contiguous(self, array: Array) -> Array:
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
        if dtype in (DType.BFLOAT16, DType.FLOAT8_E4M3FN):  # in NumPy these are dtypes of ml_dtypes
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

    def contiguous(self, array: Array) -> Array:
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
def _data_pointer_reader() -> Callable[[Array], int]:
    """Return a function from a NumPy array to the address of its elements, faster than `array.ctypes.data`.

    NumPy's C API defines that the pointer to the elements follows the object's header. The function reads it there, if
    that agrees with `array.ctypes.data` for some arrays; else the function is `array.ctypes.data`.
    """
    import numpy as np

    offset, pointer_at = object.__basicsize__, ctypes.c_size_t.from_address

    def read(array: Array) -> int:
        return pointer_at(id(array) + offset).value

    probes: list[Array] = [np.zeros(3), np.zeros((2, 5), np.int8)[1:], np.zeros(8, np.uint8).view(np.float64)]
    agrees = sys.implementation.name == "cpython" and all(read(array) == array.ctypes.data for array in probes)
    return read if agrees else lambda array: int(array.ctypes.data)


class PackedWeight:
    """A weight for one input of one operator on one device, passed instead of the array. `Eager.pack` returns it.

    It has a reference to the array, which must not change. It packs the array into a kernel's layout when a kernel
    first needs that layout.
    """

    __slots__ = ("_copies", "_lock", "array", "backend", "dtype", "input", "kind", "operator", "shape")

    def __init__(self, operator: str, input: str, array: Array, kind: ArrayKind, backend: Backend) -> None:
        self.operator = operator
        self.input = input
        self.backend = backend
        self.kind = kind
        self.array = array if kind.address(array) is not None else kind.contiguous(array)
        self.dtype = array.dtype
        self.shape = array.shape
        self._lock = threading.Lock()
        self._copies: dict[str, Buffer] = {}

    def __repr__(self) -> str:
        return f"<packed {self.dtype} {list(self.shape)} for {self.operator}'s {self.input!r} on {self.backend.name}>"

    def address(self, pack: Pack) -> int:
        """Return the address of the weight in this layout; packs the weight at the first call."""
        with self._lock:
            copy = self._copies.get(pack.name)
            if copy is None:
                copy = self.backend.allocator.alloc(pack.nbytes(tuple(self.shape), self.kind.dtype(self.array)))
                pack_into(copy, pack, self.kind.numpy(self.array), self.backend)
                self._copies[pack.name] = copy
        return copy.address


class PackedKind:
    """The kind of weights that were packed for one input; OperatorError for one that was packed for another input."""

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
        """Return a function from a packed weight to its address in this layout."""

        def address(array: Array) -> int:
            self._check(array)
            copy: int = array.address(pack)
            return copy

        return address

    def contiguous(self, array: Array) -> Array:
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
    """Pack a NumPy array into device memory; if the host cannot write there, pack in host memory and copy."""
    if buffer.is_host_accessible or not buffer.nbytes:
        pack.pack(array, buffer.address)
        return
    staged = backend.allocator.alloc(buffer.nbytes, MemoryKind.HOST)
    pack.pack(array, staged.address)
    shape = (buffer.nbytes,)
    backend.transfer.copy(Tensor.of(buffer, DType.UINT8, shape), Tensor.of(staged, DType.UINT8, shape))


def pack_weight(operator: Operator, input: str, array: Array, backend: Backend) -> PackedWeight:
    """Return a weight packed for repeated calls; OperatorError if the operator has no weight of this name."""
    weights = {spec.name: spec for spec in operator.schema.inputs if spec.kind == "W"}
    if input not in weights:
        raise OperatorError(
            f"Operator {operator.name} has no weight {input!r} to pack, only {sorted(weights) or 'none'}. "
            f"Signature: {operator.schema.text}"
        )
    kind = TensorKind(backend) if isinstance(array, Tensor) else kind_of(array)
    return PackedWeight(operator.name, input, array, kind, backend)


def dlpack_device(array: Array) -> tuple[int, int] | None:
    """Return (device type, index) of an array in the memory of a device; None for host memory and for other objects."""
    if not hasattr(array, "__dlpack_device__"):
        return None
    device_type, index = map(int, array.__dlpack_device__())
    return None if device_type == HOST else (device_type, index)


class DeviceArrays:
    """Moves the arrays of calls to one device with memory of its own, and back."""

    def __init__(self, opened: OpenDevice) -> None:
        self._backend = opened.backend
        self._device = opened.device
        self._kind = TensorKind(opened.backend)

    def tensor(self, array: Array) -> Any:
        """Return an array as a tensor of the device: itself, a view of memory that is there, or a copy."""
        if array is None or isinstance(array, PackedWeight):
            return array
        if isinstance(array, Tensor):
            if array.buffer.device != self._device:
                raise OperatorError(
                    f"The tensor is on {array.buffer.device}, and the call is for {self._device}; copy it there first."
                )
            return array
        if dlpack_device(array) is not None:
            return tensor_from_dlpack(array, self._device_of)
        kind = kind_of(array)
        host = kind.numpy(array if kind.address(array) is not None else kind.contiguous(array))
        tensor: Tensor = self._kind.new(kind.dtype(array), tuple(array.shape))()
        self._backend.transfer.copy(tensor, Tensor.of_numpy(host, self._device))
        return tensor

    def numpy(self, tensor: Tensor) -> Any:
        """Return a copy of a tensor as a NumPy array."""
        return self._kind.numpy(tensor)

    def download(self, arrays: Sequence[Array | None], tensors: Sequence[Any], results: Any) -> Any:
        """Return the results of a call as arrays of the kind of its first array.

        `tensors` are the inputs on the device that were made of `arrays`. An input that the call changed in place is
        written back to its array.
        """
        first = next((array for array in arrays if array is not None), None)
        downloaded = []
        for result in results if isinstance(results, tuple) else (results,):
            position = next((index for index, tensor in enumerate(tensors) if tensor is result), None)
            original = None if position is None else arrays[position]
            if original is None:
                downloaded.append(self._in_kind(result, first))
            elif original is not result and dlpack_device(original) is None:
                kind_of(original)
                _write_back(original, self.numpy(result))
                downloaded.append(original)
            else:
                downloaded.append(original)
        return tuple(downloaded) if isinstance(results, tuple) else downloaded[0]

    def _in_kind(self, result: Tensor, first: Array) -> Any:
        """Return a result as an array of the kind of `first`, the first array of the call."""
        first = first.array if isinstance(first, PackedWeight) else first
        if isinstance(first, Tensor):
            return result
        if dlpack_device(first) is not None:
            device_type = self._backend.capabilities.dlpack_device_type
            assert device_type is not None, "an array was imported from such a device"
            exported = ExportedTensor(result, device_type)
            return _torch().from_dlpack(exported) if _is_torch(first) else exported
        return _to_torch(self.numpy(result)) if _is_torch(first) else self.numpy(result)

    def _device_of(self, device_type: int, index: int) -> DeviceId | None:
        """Return this device if DLPack's type and index name it, else None."""
        is_here = (device_type, index) == (self._backend.capabilities.dlpack_device_type, self._device.index)
        return self._device if is_here else None


def _is_torch(array: Array) -> bool:
    return not isinstance(kind_of(array), NumpyKind)


def _torch() -> Any:
    import torch

    return torch


def _to_torch(array: Any) -> Any:
    """Return a torch tensor on the memory of a NumPy array; dtypes that torch cannot read go through integers."""
    torch = _torch()
    if array.dtype.kind != "V" and array.dtype.name not in ("bfloat16", "float8_e4m3fn"):
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))


def _write_back(original: Array, changed: Any) -> None:
    """Write a changed input to the array that the caller passed."""
    if _is_torch(original):
        original.copy_(_to_torch(changed))
    else:
        original[...] = changed
