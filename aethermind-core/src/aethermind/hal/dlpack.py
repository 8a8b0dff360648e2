"""DLPack: tensors of other libraries without a copy, and this package's tensors for them.

The structures are those of https://dmlc.github.io/dlpack (version 0.8, which all libraries still accept). The memory of
an imported tensor belongs to its library and is released with the last reference to its buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from aethermind.errors import InvalidArgumentError
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.memory import Buffer, MemoryKind
from aethermind.hal.tensor import Tensor, contiguous_strides, num_spanned

__all__ = ["ExportedTensor", "HOST", "tensor_from_dlpack"]

HOST = 1
"""`kDLCPU`, the `DLDeviceType` of host memory."""

_CAPSULE, _USED_CAPSULE = b"dltensor", b"used_dltensor"
_TYPES = {
    DType.FLOAT32: (2, 32),
    DType.FLOAT16: (2, 16),
    DType.FLOAT64: (2, 64),
    DType.BFLOAT16: (4, 16),
    DType.INT8: (0, 8),
    DType.INT32: (0, 32),
    DType.INT64: (0, 64),
    DType.UINT8: (1, 8),
    DType.BOOL: (6, 8),
}
"""`DLDataTypeCode` and bits of each dtype."""
_DTYPES = {type: dtype for dtype, type in _TYPES.items()}


class _ManagedTensor(ctypes.Structure):
    """`DLManagedTensor`, with the fields of its `DLTensor` first."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
# These take the address of a capsule that is being destroyed, which must not become a Python object again.
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of_destroyed = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


class _Export(NamedTuple):
    """The memory that the consumer of an exported tensor reads; kept alive until the consumer calls the deleter."""

    managed: _ManagedTensor
    tensor: Tensor
    dims: tuple[Any, Any]


_exports: dict[int, _Export] = {}
"""Exported tensors by the address of their `DLManagedTensor`."""


def _delete(address: int) -> None:
    _exports.pop(address, None)


def _destroy_capsule(capsule: int) -> None:
    """Delete the tensor of a capsule that no library consumed."""
    if _has_name(capsule, _CAPSULE):
        _delete(_pointer_of_destroyed(capsule, _CAPSULE))


_DELETER, _DESTRUCTOR = _Deleter(_delete), _Deleter(_destroy_capsule)


class ExportedTensor:
    """A tensor as other libraries import it: `torch.from_dlpack(ExportedTensor(tensor, device_type))`.

    `device_type` is the `DLDeviceType` of the tensor's device (`Capabilities.dlpack_device_type`).
    """

    def __init__(self, tensor: Tensor, device_type: int) -> None:
        self._tensor = tensor
        self._device_type = device_type

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type of the device, and its index."""
        return self._device_type, self._tensor.buffer.device.index

    def __dlpack__(self, **_: Any) -> Any:
        """Return a capsule. The caller has waited for work on the tensor, so a consumer's stream need not wait."""
        tensor = self._tensor
        if tensor.dtype not in _TYPES:
            raise InvalidArgumentError(f"DLPack has no type for tensors of {tensor.dtype}; convert it first.")
        dims = ctypes.c_int64 * max(len(tensor.shape), 1)
        shape, strides = dims(*tensor.shape), dims(*tensor.strides)
        code, bits = _TYPES[tensor.dtype]
        managed = _ManagedTensor(
            tensor.address,
            *self.__dlpack_device__(),
            len(tensor.shape),
            code,
            bits,
            1,
            shape,
            strides,
            0,
            None,
            ctypes.cast(_DELETER, ctypes.c_void_p),
        )
        address = ctypes.addressof(managed)
        _exports[address] = _Export(managed, tensor, (shape, strides))
        return _new_capsule(address, _CAPSULE, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


def tensor_from_dlpack(array: Any, device: Callable[[int, int], DeviceId | None]) -> Tensor:
    """Return a view of an object with `__dlpack__`, without a copy.

    `device` returns the device of a `DLDeviceType` and an index, None for one that is unknown. Raises
    InvalidArgumentError for such a device, for a type that tensors do not have, and for negative strides.
    """
    device_type, index = map(int, array.__dlpack_device__())
    found = device(device_type, index)
    if found is None:
        raise InvalidArgumentError(
            f"No device of an installed backend has DLPack's type {device_type} and index {index}; "
            "copy the array to host memory first."
        )
    capsule = array.__dlpack__()
    address = _pointer_of(capsule, _CAPSULE)
    managed = _ManagedTensor.from_address(address)
    type = managed.type_code, managed.type_bits
    if type not in _DTYPES or managed.type_lanes != 1:
        raise InvalidArgumentError(f"Tensors have no type like that of {array.__class__.__name__}; convert it first.")
    shape = tuple(managed.shape[: managed.ndim])
    strides = tuple(managed.strides[: managed.ndim]) if managed.strides else contiguous_strides(shape)
    if min(strides, default=0) < 0:
        raise InvalidArgumentError("An array with negative strides cannot be a tensor; copy it first.")
    _set_name(capsule, _USED_CAPSULE)
    release = _Deleter(managed.deleter) if managed.deleter else None
    dtype, is_on_host = _DTYPES[type], device_type == HOST
    buffer = Buffer(
        found,
        (managed.data or 0) + managed.byte_offset,
        num_spanned(shape, strides) * dtype.itemsize,
        kind=MemoryKind.HOST if is_on_host else MemoryKind.DEVICE,
        is_host_accessible=is_on_host,
        release=None if release is None else lambda: release(address),
    )
    return Tensor(buffer, dtype, shape, strides)
