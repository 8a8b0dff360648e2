"""Tensors in device memory that the host cannot access: pages of the simulator, passed to torch by DLPack.

DLPack's `kDLExtDev` is torch's PrivateUse1, so torch creates tensors over such memory without C++ code. Dropped tensors
are freed in stream order, as by a caching allocator: work submitted before can still use their memory.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aethermind.hal.host_memory import host_memory_bytes
from aethermind.hal.tensor import num_spanned
from aethermind_sim.memory import Region

__all__ = ["NUM_DEVICES", "allocated_bytes", "empty", "free_dropped", "is_pinned", "region_of", "total_bytes"]

NUM_DEVICES = 2
_CPU, _EXTENSION = 1, 12  # DLDeviceType
_CODES = {torch.bfloat16: 4, torch.bool: 6, torch.uint8: 1}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_numbers = itertools.count(1)
_kept: dict[int, tuple[Any, ...]] = {}
_regions: dict[int, Region] = {}
_dropped: list[tuple[Region, Callable[[Callable[[], None]], None]]] = []
_allocated = [0] * NUM_DEVICES
_lock = threading.RLock()


def total_bytes() -> int:
    """Memory of each device."""
    return host_memory_bytes() // NUM_DEVICES


def allocated_bytes(index: int) -> int:
    """Bytes in use by tensors of a device."""
    return _allocated[index]


def empty(
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    index: int | None,
    submit: Callable[[Callable[[], None]], None],
) -> torch.Tensor:
    """A tensor full of garbage on a device, or in pinned host memory where `index` is None.

    `submit` enqueues work on the memory's stream, which frees it.
    """
    itemsize = dtype.itemsize
    nbytes = num_spanned(shape, strides) * itemsize
    if index is not None and nbytes > total_bytes() - _allocated[index]:
        raise torch.OutOfMemoryError(f"NPU out of memory. Tried to allocate {nbytes} bytes (NPU {index}).")
    region = Region(nbytes, index)
    number = next(_numbers)
    dims, steps = ((ctypes.c_int64 * len(shape))(*values) for values in (shape, strides))
    code = _CODES.get(dtype, 2 if dtype.is_floating_point else 0)
    device = _Device(_CPU, 0) if index is None else _Device(_EXTENSION, index)
    tensor = _DLTensor(region.address, device, len(shape), _DataType(code, itemsize * 8, 1), dims, steps, 0)
    managed = _Managed(tensor, number, _delete)
    with _lock:
        _kept[number] = (managed, dims, steps, region, submit)
        _regions[region.address] = region
        if index is not None:
            _allocated[index] += nbytes
    return torch._C._from_dlpack(_new_capsule(ctypes.addressof(managed), b"dltensor", None))


@_Deleter
def _delete(managed: Any) -> None:
    with _lock:
        *_, region, submit = _kept.pop(managed.contents.context)
        del _regions[region.address]
        if region.device is not None:
            _allocated[region.device] -= region.nbytes
        _dropped.append((region, submit))  # a tensor may be dropped at any point


def free_dropped() -> None:
    """Free dropped memory after the pending work of its stream."""
    while _dropped:
        region, submit = _dropped.pop()
        submit(region.release)


def region_of(tensor: torch.Tensor) -> Region | None:
    """The pages of a tensor; None for ordinary host memory."""
    return _regions.get(tensor.untyped_storage().data_ptr())


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a host tensor is in pinned memory."""
    region = region_of(tensor)
    return region is not None and region.device is None
