"""Decode steps of sizes that come again are one launch of a graph; everything else is launched step by step."""

from __future__ import annotations

import pytest
from tests.cuda.host_driver import HostDriver

from aethermind.errors import DeviceError
from aethermind_cuda.devices import Context
from aethermind_cuda.driver import CudaError
from aethermind_cuda.graph_capture import CudaGraphCache


def test_the_first_run_of_a_size_is_not_captured_and_later_ones_are_one_launch() -> None:
    driver = HostDriver()
    captured, stream, done = CudaGraphCache(driver, Context(driver, 0)), driver.stream_create(0), []
    enqueue = lambda where: driver._do(lambda: done.append(where))  # noqa: E731
    for _ in range(4):
        captured.run((1, 1), stream, enqueue)
    assert (done, driver.calls["begin_capture"], driver.calls["graph_launch"]) == ([stream] * 4, 1, 3)
    captured.close()
    assert driver.calls["graph_exec_destroy"] == 1


def test_least_recently_used_graphs_are_destroyed() -> None:
    driver = HostDriver()
    captured, stream = CudaGraphCache(driver, Context(driver, 0)), driver.stream_create(0)
    for _ in range(2):
        for size in range(70):
            captured.run((size,), stream, lambda _: None)
    assert driver.calls["begin_capture"] - driver.calls["graph_exec_destroy"] == 64


def test_a_capture_that_fails_leaves_the_stream_usable() -> None:
    driver = HostDriver()
    captured, stream = CudaGraphCache(driver, Context(driver, 0)), driver.stream_create(0)
    captured.run((1,), stream, lambda _: None)

    def broken(_: int) -> None:
        raise CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access")

    with pytest.raises(DeviceError, match="device is lost to this process"):
        captured.run((1,), stream, broken)
    captured.run((1,), stream, lambda _: None)
    assert driver.calls["graph_launch"] == 1
