"""Whether there is an NVIDIA GPU to use, asked of the driver itself."""

from __future__ import annotations

import ctypes
from typing import NoReturn

from aethermind.errors import DeviceError
from aethermind.hal import Probe

__all__ = ["open_backend", "probe"]

_SUCCESS = 0
_NO_DEVICE = 100


def probe() -> Probe:
    """Ask `libcuda` how many GPUs there are; creates no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Probe(0, "no NVIDIA driver is installed (libcuda.so.1 was not found).")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (status == _SUCCESS and count.value == 0):
        return Probe(0, "the NVIDIA driver is installed and sees no GPU.")
    if status != _SUCCESS:
        return Probe(0, f"the NVIDIA driver answered with error {status}; `nvidia-smi` may tell more.")
    return Probe(0, f"{count.value} GPU(s) found, but this version of aethermind-cuda has no kernels for them yet.")


def open_backend() -> NoReturn:
    """There is nothing to open before there are kernels."""
    raise DeviceError(f"Device 'cuda' cannot be opened: {probe().reason}")
