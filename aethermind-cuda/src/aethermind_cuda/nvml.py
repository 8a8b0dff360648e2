"""The utilisation and memory of GPUs from NVML, the library behind `nvidia-smi`, which comes with the driver.

It is called through its C interface; see https://docs.nvidia.com/deploy/nvml-api. NVML numbers all GPUs of a machine,
and CUDA those that CUDA_VISIBLE_DEVICES lists, so a GPU is found by its address on the PCI bus.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from aethermind.hal.device import DeviceUsage

__all__ = ["Nvml", "find_nvml"]

_LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last sampling period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """NVML, opened. Its calls are thread-safe and need no CUDA context."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def usage(self, device: str, bus_id: str) -> DeviceUsage | None:
        """Return the usage of the GPU at a PCI address such as `00000000:3b:00.0`; None if NVML does not answer.

        A GPU that is divided (MIG) has no utilisation.
        """
        handle, memory, rates = ctypes.c_void_p(), _Memory(), _Utilization()
        if self._library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)) != 0:
            return None
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        has_rates = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0
        return DeviceUsage(device, memory.used, memory.total, rates.gpu / 100 if has_rates else None)


@cache
def find_nvml(library: str = _LIBRARY) -> Nvml | None:
    """Open NVML for the rest of the process; None where it is not installed or does not start."""
    try:
        opened = ctypes.CDLL(library)
    except OSError:
        return None
    return Nvml(opened) if opened.nvmlInit_v2() == 0 else None
