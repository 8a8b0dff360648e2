"""Utilisation and memory of GPUs, from a library with NVML's C interface."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from tests.cuda.host_driver import HostDriver

from aethermind.hal import DeviceUsage
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.nvml import find_nvml

STUB = Path(__file__).parent / "stub" / "nvml.c"


def test_usage_is_that_of_the_gpu_at_the_address_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, str(STUB)], check=True)
    nvml = find_nvml(library)
    assert nvml is not None
    monkeypatch.setattr("aethermind_cuda.backend.find_nvml", lambda: nvml)
    backend = CudaBackend(HostDriver())
    assert backend.usage(0) == DeviceUsage("cuda:0", 30 << 30, 80 << 30, 0.37)
    assert nvml.usage("cuda:1", "00000000:3b:00.0") is None, "there is no such GPU"
    ctypes.CDLL(library).divide()
    assert backend.usage(0) == DeviceUsage("cuda:0", 30 << 30, 80 << 30, None)


def test_without_nvml_usage_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_nvml(str(tmp_path / "nothing.so")) is None
    monkeypatch.setattr("aethermind_cuda.backend.find_nvml", lambda: None)
    assert CudaBackend(HostDriver()).usage(0) is None
