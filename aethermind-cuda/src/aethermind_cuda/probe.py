"""Detects NVIDIA GPUs by the driver, without a context and without heavy imports."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aethermind.errors import DeviceError
from aethermind.hal import Probe

if TYPE_CHECKING:
    from aethermind_cuda.backend import CudaBackend

__all__ = ["capability_of_first", "open_backend", "probe", "probe_driver"]

_SUCCESS = 0
_NO_DEVICE = 100
_MAJOR, _MINOR = 75, 76
_OLDEST_DRIVER = 13000


def probe() -> Probe:
    """Count GPUs by `libcuda` and check that the compiled kernels support them."""
    from aethermind_cuda.library import Cubins

    result = probe_driver()
    if result.is_available:
        reason = Cubins().unsupported_reason(capability_of_first())
        if reason is not None:
            return Probe(0, f"{_num_gpus_found(result.count)}, but {reason}")
    return result


def probe_driver() -> Probe:
    """Check for GPUs and a supported driver, whatever the kernels."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Probe(0, "no NVIDIA driver is installed (libcuda.so.1 was not found).")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (status == _SUCCESS and count.value == 0):
        return Probe(0, "the NVIDIA driver is installed and sees no GPU.")
    if status != _SUCCESS:
        return Probe(0, f"the NVIDIA driver answered with error {status}; see `nvidia-smi`.")
    found = _num_gpus_found(count.value)
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < _OLDEST_DRIVER:
        supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return Probe(
            0, f"{found}, but their driver supports CUDA {supported} and 13.0 is needed: update the NVIDIA driver."
        )
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return Probe(0, f"{found}, but cuda-bindings is not installed: run `pip install cuda-bindings`.")
    return Probe(count.value, f"{found} by the NVIDIA driver.")


def _num_gpus_found(count: int) -> str:
    return f"{count} GPU(s) found"


def capability_of_first() -> tuple[int, int]:
    """The compute capability of GPU 0, which `probe_driver` found."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return major.value, minor.value


def open_backend() -> CudaBackend:
    """Open all GPUs of this machine; DeviceError states why none can be used."""
    result = probe()
    if not result.is_available:
        raise DeviceError(f"Device 'cuda' cannot be opened: {result.reason}")
    from aethermind_cuda.backend import CudaBackend
    from aethermind_cuda.cuda_bindings_driver import load_driver

    return CudaBackend(load_driver())
