"""The conformance kit's own hardware suite over a driver in host memory, and what is CUDA's alone."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind.errors import OutOfMemoryError
from aethermind.hal import DeviceId, DType, MemoryKind, Tensor
from aethermind.testing.suites import test_hal, test_hal_pending
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.driver import CudaError
from aethermind_cuda.launch import Launch

CASES = {**vars(test_hal), **vars(test_hal_pending)}
globals().update({name: case for name, case in CASES.items() if name.startswith("test_") or name == "stream"})


@pytest.fixture
def driver() -> HostDriver:
    """Two GPUs of a GiB."""
    return HostDriver()


@pytest.fixture
def backend(driver: HostDriver) -> CudaBackend:
    """The backend over it."""
    return CudaBackend(driver)


@pytest.fixture
def device() -> DeviceId:
    """The first GPU."""
    return DeviceId("cuda", 0)


def test_closing_releases_everything(driver: HostDriver, backend: CudaBackend) -> None:
    for kind in MemoryKind:
        backend.allocator.alloc(1000, kind).free()
    backend.streams.default()
    backend.close()
    assert driver.memory == {}
    assert driver.calls["stream_create"] == driver.calls["stream_destroy"]
    assert driver.calls["retain_context"] == driver.calls["release_context"]


def test_everything_is_released_after_a_device_loss(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost() -> None:
        raise CudaError("cuCtxSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was met")

    backend = CudaBackend(driver, fake_cubins(tmp_path, ["rms_norm"]))
    stream = backend.streams.default()
    backend.enqueue([Launch("rms_norm", "rms_norm_float32", (1, 1, 1), (32, 1, 1), ())], stream)
    backend.allocator.alloc(1000).free()
    monkeypatch.setattr(driver, "synchronize_context", lost)
    with pytest.raises(CudaError, match="an illegal memory access"):
        backend.close()
    assert driver.calls["module_load"] == driver.calls["module_unload"] > 0
    assert driver.calls["stream_create"] == driver.calls["stream_destroy"]
    assert driver.memory == {}
    assert driver.calls["retain_context"] == driver.calls["release_context"]


def test_small_buffers_are_cached_and_large_ones_are_freed(driver: HostDriver, backend: CudaBackend) -> None:
    first = backend.allocator.alloc(1000)
    address = first.address
    first.free()
    assert backend.allocator.alloc(900).address == address
    assert driver.calls["mem_alloc"] == 1
    large = backend.allocator.alloc(64 << 20)
    assert driver.memory_info()[0] <= driver.total - (64 << 20)
    large.free()
    assert driver.calls["mem_free"] == 1


def test_cached_memory_is_returned_before_an_out_of_memory_error(backend: CudaBackend) -> None:
    kept = [backend.allocator.alloc(30 << 20) for _ in range(33)]
    del kept
    gc.collect()
    assert backend.allocator.pressure(0).cached_bytes == 33 * (30 << 20)
    backend.allocator.alloc(900 << 20)
    assert backend.allocator.pressure(0).cached_bytes == 0


def test_memory_pressure_is_reported_by_the_driver(driver: HostDriver, backend: CudaBackend) -> None:
    held = backend.allocator.alloc(100 << 20)
    assert backend.allocator.pressure(0)[:2] == driver.memory_info() == (driver.total - held.nbytes, driver.total)


def test_serving_continues_after_out_of_memory(backend: CudaBackend) -> None:
    held = backend.allocator.alloc(1000 << 20)
    wanted = 25 << 20
    with pytest.raises(OutOfMemoryError) as caught:
        backend.allocator.alloc(wanted)
    assert str(caught.value) == (
        f"Could not allocate {wanted} bytes on cuda:0: {24 << 20} of its {1 << 30} bytes are free, {1000 << 20} are in "
        "use by this process's tensors. Lower --num-kv-blocks or --max-model-len, or choose a smaller model."
    )
    held.free()
    assert backend.allocator.alloc(wanted).nbytes == wanted


def test_memory_belongs_to_the_current_device_and_is_copied_to_the_other(backend: CudaBackend) -> None:
    tensors = []
    for index in (0, 1):
        backend.devices.set_current(index)
        tensors.append(Tensor.of(backend.allocator.alloc(12), DType.INT32, (3,)))
    assert [tensor.buffer.device.index for tensor in tensors] == [0, 1]
    array = np.array([1, 2, 3], np.int32)
    backend.transfer.copy(tensors[0], Tensor.of_numpy(array, DeviceId("cuda", 0)))
    backend.transfer.copy(tensors[1], tensors[0])
    back = np.zeros(3, np.int32)
    backend.transfer.copy(Tensor.of_numpy(back, DeviceId("cuda", 1)), tensors[1])
    assert back.tolist() == [1, 2, 3]
    assert backend.transfer.stats() == type(backend.transfer.stats())(12, 12, 1, 1)


def test_priorities_are_brought_into_the_drivers_range(backend: CudaBackend) -> None:
    for priority in (-100, -1, 0, 7):
        backend.streams.create(priority=priority).destroy()
