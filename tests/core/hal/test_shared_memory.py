"""Collectives through shared memory: every rank has the same bits, whatever the sizes and whoever comes late."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import scaled

from aethermind.hal import DeviceId, Tensor
from aethermind.hal.communicator import SharedMemoryCommunicator, shared_file
from aethermind.hal.host_memory import HostStreams


def together(size: int, call: Callable[[SharedMemoryCommunicator], Any]) -> list[Any]:
    """What each rank, a thread with a mapping of its own, returns."""
    descriptor = shared_file(size)
    ranks = [SharedMemoryCommunicator(rank, size, descriptor) for rank in range(size)]
    os.close(descriptor)
    with ThreadPoolExecutor(size) as pool:
        return [one.result(300) for one in [pool.submit(call, rank) for rank in ranks]]


@settings(max_examples=scaled(1000), deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 400_000), min_size=1, max_size=4), st.integers(0, 2**32))
def test_sums_are_those_in_the_order_of_ranks_with_the_same_bits(size: int, lengths: list[int], seed: int) -> None:
    terms = [
        [np.random.default_rng([seed, rank, n]).normal(size=n).astype("f4") for n in lengths] for rank in range(size)
    ]

    def call(communicator: SharedMemoryCommunicator) -> list[Any]:
        arrays = [array.copy() for array in terms[communicator.rank]]
        for array in arrays:
            communicator.sum(array)
        return arrays

    found = together(size, call)
    for position in range(len(lengths)):
        expected = terms[0][position].copy()
        for rank in range(1, size):
            expected += terms[rank][position]
        for rank in range(size):
            np.testing.assert_array_equal(found[rank][position], expected)


def test_narrow_floats_are_rounded_once() -> None:
    terms = [np.array([1.0, 3.0], ml_dtypes.bfloat16), np.array([1 / 256, 1.0], ml_dtypes.bfloat16)]
    terms.append(terms[1])

    def call(communicator: SharedMemoryCommunicator) -> Any:
        array = terms[communicator.rank].copy()
        communicator.sum(array)
        return array

    for found in together(3, call):  # 1 + 1/256 alone would be rounded down to 1
        np.testing.assert_array_equal(found.astype(np.float32), [1 + 2 / 256, 5.0])


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (3, 400_000)])
def test_parts_are_gathered_in_the_order_of_ranks(shape: tuple[int, int]) -> None:
    def call(communicator: SharedMemoryCommunicator) -> Any:
        output = np.zeros((3, *shape), np.float32)
        communicator.gather(output, np.full(shape, communicator.rank + 1, np.float32))
        return output

    for found in together(3, call):
        np.testing.assert_array_equal(found, np.broadcast_to(np.arange(1, 4, dtype="f4").reshape(3, 1, 1), found.shape))


def test_it_is_a_communicator_of_tensors() -> None:
    device = DeviceId("numpy")
    stream = HostStreams().default(0)

    def call(communicator: SharedMemoryCommunicator) -> Any:
        own = np.full(4, communicator.rank + 1.0, np.float32)
        summed, sent, joined = own.copy(), own.copy(), np.zeros((8,), np.float32)
        communicator.all_reduce(Tensor.of_numpy(summed, device), stream)
        communicator.broadcast(Tensor.of_numpy(sent, device), 1, stream)
        communicator.all_gather(Tensor.of_numpy(joined, device), Tensor.of_numpy(own, device), stream)
        communicator.barrier()
        return summed, sent, joined

    for summed, sent, joined in together(2, call):
        assert summed.tolist() == [3.0] * 4
        assert sent.tolist() == [2.0] * 4
        assert joined.tolist() == [1.0] * 4 + [2.0] * 4


def test_a_wait_asks_whether_the_others_live() -> None:
    class GoneError(Exception): ...

    def ask() -> None:
        raise GoneError

    descriptor = shared_file(2)
    alone = SharedMemoryCommunicator(0, 2, descriptor, ask)
    os.close(descriptor)
    with pytest.raises(GoneError):
        alone.barrier()
