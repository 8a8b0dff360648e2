"""Decode steps of sizes that come again are one launch of a graph; everything else is launched step by step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.cuda.host_driver import HostDriver

from aethermind.errors import DeviceError
from aethermind_cuda.driver import CudaError
from aethermind_cuda.graph_capture import BATCH_SIZES, CapturedSteps, is_decode_size

MOST = {"T": 512, "S": 40, "R": 40, "B": 100, "X": 9}


@pytest.mark.parametrize(
    ("sizes", "is_decode"),
    [
        ((1, 1, 1, 1, 0), True),
        ((16, 16, 16, 64, 0), True),
        ((40, 40, 40, 100, 0), True),
        ((3, 3, 3, 4, 0), False),
        ((16, 16, 16, 3, 0), False),
        ((16, 8, 8, 4, 0), False),
        ((16, 16, 8, 4, 0), False),
        ((16, 16, 16, 4, 5), False),
        ((0, 0, 0, 0, 0), False),
    ],
)
def test_which_sizes_are_those_of_padded_decodes(sizes: tuple[int, ...], is_decode: bool) -> None:
    assert is_decode_size(dict(zip(MOST, sizes, strict=True)), MOST) is is_decode
    assert not is_decode_size({"R": 1}, {"R": 4})


def test_padding_is_bounded() -> None:
    assert list(BATCH_SIZES) == sorted(set(BATCH_SIZES))
    steps = pairwise(BATCH_SIZES)
    assert all(after <= 2 * before and (before < 64 or after - before <= before // 4) for before, after in steps)


def test_the_first_run_of_a_size_is_not_captured_and_later_ones_are_one_launch() -> None:
    driver = HostDriver()
    captured, stream, done = CapturedSteps(driver), driver.stream_create(0), []
    enqueue = lambda where: driver._do(lambda: done.append(where))  # noqa: E731
    for _ in range(4):
        captured.run((1, 1), stream, enqueue)
    assert (done, driver.calls["begin_capture"], driver.calls["graph_launch"]) == ([stream] * 4, 1, 3)
    captured.close()
    assert driver.calls["graph_destroy"] == 1


def test_graphs_used_long_ago_are_given_back() -> None:
    driver = HostDriver()
    captured, stream = CapturedSteps(driver), driver.stream_create(0)
    for _ in range(2):
        for size in range(70):
            captured.run((size,), stream, lambda _: None)
    assert driver.calls["begin_capture"] - driver.calls["graph_destroy"] == 64


def test_a_capture_that_fails_leaves_the_stream_usable() -> None:
    driver = HostDriver()
    captured, stream = CapturedSteps(driver), driver.stream_create(0)
    captured.run((1,), stream, lambda _: None)

    def broken(_: int) -> None:
        raise CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access")

    with pytest.raises(DeviceError, match="device is lost to this process"):
        captured.run((1,), stream, broken)
    captured.run((1,), stream, lambda _: None)
    assert driver.calls["graph_launch"] == 1
