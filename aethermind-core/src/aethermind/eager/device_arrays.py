"""Arrays of calls on a device with memory of its own: uploaded if they are in host memory, and results in kind.

A tensor that is in the device's memory already is used there, whether it is a `hal.Tensor` or another library's (by
DLPack). The first array decides what results are: NumPy arrays, torch tensors on its device, or `hal.Tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.eager.arrays import Array, NumpyKind, PackedWeight, TensorKind, kind_of
from aethermind.errors import OperatorError
from aethermind.hal.device import DeviceId
from aethermind.hal.dlpack import HOST, ExportedTensor, tensor_from_dlpack
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.runtime import OpenDevice

__all__ = ["DeviceArrays", "dlpack_device"]


def dlpack_device(array: Array) -> tuple[int, int] | None:
    """The DLPack device of an array in the memory of a device; None for one in host memory and for other objects."""
    if not hasattr(array, "__dlpack_device__"):
        return None
    device_type, index = map(int, array.__dlpack_device__())
    return None if device_type == HOST else (device_type, index)


class DeviceArrays:
    """Moves the arrays of calls to one device and back."""

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
        host = kind.numpy(array if kind.address(array) is not None else kind.settled(array))
        tensor: Tensor = self._kind.new(kind.dtype(array), tuple(array.shape))()
        self._backend.transfer.copy(tensor, Tensor.of_numpy(host, self._device))
        return tensor

    def numpy(self, tensor: Tensor) -> Any:
        """Return a copy of a tensor as a NumPy array."""
        return self._kind.numpy(tensor)

    def returned(self, given: Sequence[Array | None], moved: Sequence[Any], results: Any) -> Any:
        """Return the results of a call in the kind of its first array; inputs that it changed are written back."""
        first = next((array for array in given if array is not None), None)
        listed = results if isinstance(results, tuple) else (results,)
        returned = []
        for result in listed:
            position = next((index for index, tensor in enumerate(moved) if tensor is result), None)
            original = None if position is None else given[position]
            if original is None:
                returned.append(self._in_kind(result, first))
            elif original is not result and dlpack_device(original) is None:
                kind_of(original)
                _write_back(original, self.numpy(result))
                returned.append(original)
            else:
                returned.append(original)
        return tuple(returned) if isinstance(results, tuple) else returned[0]

    def _in_kind(self, result: Tensor, first: Array) -> Any:
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
        is_here = (device_type, index) == (self._backend.capabilities.dlpack_device_type, self._device.index)
        return self._device if is_here else None


def _is_torch(array: Array) -> bool:
    return not isinstance(kind_of(array), NumpyKind)


def _torch() -> Any:
    import torch

    return torch


def _to_torch(array: Any) -> Any:
    """A torch tensor on the memory of a NumPy array; dtypes that torch cannot read are viewed as integers."""
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
