"""Copies of whole blocks: all tensors of the cache, in whatever order, and nothing beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import scaled

from aethermind import Runtime
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.hal.dtype import DType
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice

NUM_BLOCKS = 6
NUM_HOST_BLOCKS = 9
TYPES = {
    "k_cache": TensorType(DType.INT8, (NUM_BLOCKS, 2, 4, 3)),
    "k_scale": TensorType(DType.FLOAT32, (NUM_BLOCKS, 2, 4)),
}


def fill(memory: KVMemory) -> dict[str, Any]:
    """Make every block differ from all others; returns copies."""
    for tensor in memory.tensors.values():
        array = tensor.numpy()
        array[:] = np.arange(array.size).reshape(array.shape) % 127 + 1
    return {name: tensor.numpy().copy() for name, tensor in memory.tensors.items()}


@pytest.fixture
def opened(runtime: Runtime, device: str) -> OpenDevice:
    return runtime.open_device(device)


@pytest.fixture
def memory(opened: OpenDevice) -> KVMemory:
    return KVMemory(TYPES, opened)


def test_the_memory_of_the_first_block_is_committed_first(opened: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int]] = []
    allocator = opened.backend.allocator
    monkeypatch.setattr(
        allocator, "make_ready", lambda buffers, nbytes: asked.append(([one.address for one in buffers], nbytes))
    )
    memory = KVMemory(TYPES, opened)
    assert asked == [([tensor.address for tensor in memory.tensors.values()], 2 * 4 * 4)]


def test_a_copy_within_the_cache(memory: KVMemory, opened: OpenDevice) -> None:
    before = fill(memory)
    memory.copy_blocks([(0, 3), (1, 5)])
    opened.backend.streams.default().synchronize()
    for name, tensor in memory.tensors.items():
        assert np.array_equal(tensor.numpy(), before[name][[0, 1, 2, 0, 4, 1]])


def test_a_round_trip_through_host_memory(memory: KVMemory) -> None:
    host = memory.alloc_swap_blocks(NUM_HOST_BLOCKS)

    @settings(max_examples=scaled(6000), deadline=None)
    @given(st.data(), st.integers(0, NUM_BLOCKS))
    def check(data: st.DataObject, count: int) -> None:
        source, destination = (data.draw(st.permutations(range(NUM_BLOCKS)))[:count] for _ in range(2))
        host_blocks = data.draw(st.permutations(range(NUM_HOST_BLOCKS)))[:count]
        before = fill(memory)
        host.move_out(source, host_blocks)
        for tensor in memory.tensors.values():
            tensor.numpy()[source] = 0
        host.move_in(host_blocks, destination)
        for name, tensor in memory.tensors.items():
            expected = before[name].copy()
            expected[source] = 0
            expected[destination] = before[name][source]
            assert np.array_equal(tensor.numpy(), expected)

    check()


def test_its_size_is_that_of_its_tensors(memory: KVMemory) -> None:
    assert memory.nbytes == NUM_BLOCKS * (2 * 4 * 3 + 2 * 4 * 4)
