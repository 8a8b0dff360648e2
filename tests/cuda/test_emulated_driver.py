"""The emulated driver finds what a real one would let pass, and does what a real one does."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.host_driver import fake_cubins

from aethermind.errors import DeviceError
from aethermind.hal import DType
from aethermind_cuda.driver import CudaError
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Int64, Launch
from aethermind_cuda.library import KernelLibrary

A100 = DeviceFacts((8, 0), 108, 163 << 10)
ROWS, WIDTH = 3, 40


class Bench:
    """A driver, a stream, and an rms_norm of ones in device memory."""

    def __init__(self, driver: EmulatedDriver, folder: Path) -> None:
        self.driver = driver
        driver.set_context(driver.retain_context(0))
        self.library = KernelLibrary(driver, A100, fake_cubins(folder, ["rms_norm"]))
        self.stream = driver.stream_create(0)
        self.x, self.weight, self.out = (
            DeviceArray(driver.mem_alloc(ROWS * WIDTH * 4), DType.FLOAT32, shape)
            for shape in ((ROWS, WIDTH), (WIDTH,), (ROWS, WIDTH))
        )
        self.pinned = driver.host_alloc(ROWS * WIDTH * 4)
        self.host = np.ctypeslib.as_array((ctypes.c_float * (ROWS * WIDTH)).from_address(self.pinned))
        self.put(self.x, 2.0)
        self.put(self.weight, 1.0)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.out, self.x, self.weight, WIDTH, 0.0, 0.0

    def put(self, array: DeviceArray, value: float) -> None:
        self.host[:] = value
        self.driver.copy(array.address, self.pinned, array.nbytes, self.stream)
        self.driver.stream_synchronize(self.stream)

    def launch(self, *arguments: Any, shared_bytes: int = 0, kernel: str = "rms_norm_float32") -> None:
        launch = Launch("rms_norm", kernel, (ROWS, 1, 1), (32, 1, 1), arguments or self.arguments, shared_bytes)
        launch.bind(self.library)(self.stream)

    def result(self) -> Any:
        self.host[:] = -1
        self.driver.copy(self.pinned, self.out.address, self.out.nbytes, self.stream)
        self.driver.stream_synchronize(self.stream)
        return self.host.copy()


@pytest.fixture(params=[0, 1, 2])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with emulated_cuda(tmp_path, request.param) as driver:
        yield Bench(driver, tmp_path)


def test_a_launch_computes(bench: Bench) -> None:
    bench.launch()
    np.testing.assert_allclose(bench.result(), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("position", "argument", "words"),
    [
        (3, Int64(WIDTH), "takes width as i4 and gets a Int64 of 8 bytes"),
        (3, 40.0, "takes width as i4 and gets a c_float of 4 bytes"),
        (4, 1, "takes eps as f4 and gets a c_int of 4 bytes"),
        (1, 7, "takes x as c8 and gets a c_int of 4 bytes"),
        (1, Int64(7), "takes x as c8 and gets a Int64 of 8 bytes"),
    ],
)
def test_arguments_of_a_wrong_type_are_detected(bench: Bench, position: int, argument: Any, words: str) -> None:
    arguments = list(bench.arguments)
    arguments[position] = argument
    with pytest.raises(AssertionError, match=words):
        bench.launch(*arguments)


def test_missing_arguments_are_detected(bench: Bench) -> None:
    with pytest.raises(AssertionError, match=r"takes .* and gets"):
        bench.launch(*bench.arguments[:-1])


def test_a_kernel_error_is_raised_at_the_wait_for_its_stream(bench: Bench) -> None:
    bench.launch(bench.out, bench.x, bench.weight, WIDTH + 1, 0.0, 0.0)
    with pytest.raises(DeviceError, match=r"rms_norm_float32: block .* beyond the end of `memory of 480 bytes`"):
        bench.driver.stream_synchronize(bench.stream)
    bench.launch()
    np.testing.assert_allclose(bench.result(), 1.0, rtol=1e-6)


def test_freed_memory_is_invalid(bench: Bench) -> None:
    bench.driver.mem_free(bench.x.address)
    bench.launch()
    with pytest.raises(DeviceError, match=r"beyond the end|begin .* before|no device memory"):
        bench.driver.stream_synchronize(bench.stream)


def test_much_shared_memory_has_to_be_allowed(bench: Bench) -> None:
    function = bench.library.function("rms_norm", "rms_norm_float32")
    with pytest.raises(CudaError, match="shared memory"):
        bench.driver.launch_kernel(function, (1, 1, 1), (32, 1, 1), 50 << 10, bench.stream, 0)


def test_a_missing_kernel_is_reported(bench: Bench) -> None:
    with pytest.raises(CudaError, match="CUDA_ERROR_NOT_FOUND"):
        bench.launch(kernel="rms_norm_int7")


def test_captured_work_runs_and_reads_memory_at_launch(bench: Bench) -> None:
    driver, other = bench.driver, bench.driver.stream_create(0)
    fork, join = driver.event_create(False), driver.event_create(False)
    driver.begin_capture(bench.stream)
    driver.event_record(fork, bench.stream)
    driver.stream_wait_event(other, fork)
    driver.fill(bench.weight.address, 0, bench.weight.nbytes, other)
    driver.event_record(join, other)
    driver.stream_wait_event(bench.stream, join)
    bench.launch()
    with pytest.raises(CudaError, match="STREAM_CAPTURE_UNSUPPORTED"):
        driver.stream_synchronize(bench.stream)
    executable = driver.graph_instantiate(driver.end_capture(bench.stream))
    bench.launch()
    np.testing.assert_allclose(bench.result(), 1.0, rtol=1e-6)
    driver.graph_launch(executable, bench.stream)
    np.testing.assert_array_equal(bench.result(), 0.0)


def test_work_runs_late_unless_waited_for(tmp_path: Path) -> None:
    """At least one of a few seeds shows a host that looks too early."""
    is_done = []
    for seed in range(6):
        with emulated_cuda(tmp_path, seed) as driver:
            bench = Bench(driver, tmp_path)
            bench.launch()
            bench.host[:] = -1
            driver.copy(bench.pinned, bench.out.address, bench.out.nbytes, bench.stream)
            is_done.append(bool(bench.host[0] != -1))
    assert not all(is_done)


def test_memory_is_counted_and_runs_out(bench: Bench) -> None:
    free, total = bench.driver.memory_info()
    assert total - free == 3 * ROWS * WIDTH * 4
    with pytest.raises(CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        bench.driver.mem_alloc(free + 1)
