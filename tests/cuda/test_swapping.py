"""Swaps on a GPU: what is put on which stream, and that the host waits for nothing; and under late streams."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.host_driver import HostDriver

from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.kv_memory.swap_stream import SwapStream
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice
from aethermind_cuda.backend import CudaBackend

CUDA = DeviceId("cuda", 0)
NUM_BLOCKS = 20
TYPES = {"k_cache": TensorType(DType.FLOAT16, (NUM_BLOCKS, 2, 4, 8))}
BLOCKS = list(range(2, 19))


class NotingDriver(HostDriver):
    """Notes what is put on streams, and what the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, int]] = []

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        self.noted.append(("copy", stream))
        super().copy(destination, source, nbytes, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self.noted.append(("wait", stream))
        super().stream_wait_event(stream, event)

    def event_record(self, event: int, stream: int) -> None:
        self.noted.append(("record", stream))
        super().event_record(event, stream)

    def event_query(self, event: int) -> bool:
        return False

    def stream_synchronize(self, stream: int) -> None:
        self.noted.append(("host waits", stream))
        super().stream_synchronize(stream)

    def event_synchronize(self, event: int) -> None:
        self.noted.append(("host waits", event))
        super().event_synchronize(event)

    def mem_free(self, address: int) -> None:
        self.noted.append(("free", address))
        super().mem_free(address)

    def host_free(self, address: int) -> None:
        self.noted.append(("free", address))
        super().host_free(address)


def swapping(backend: CudaBackend, swap_device: DeviceId | None = None) -> tuple[KVMemory, SwapStream]:
    """A cache, and what swaps its blocks to another GPU or to host memory."""
    opened = cast(OpenDevice, SimpleNamespace(backend=backend, device=CUDA))
    memory = KVMemory(TYPES, opened, swap_device=swap_device)
    swaps = memory.swap_stream(NUM_BLOCKS, lambda num_bytes, seconds: None)
    assert swaps is not None
    return memory, swaps


def test_swaps_use_their_own_stream_without_host_waits() -> None:
    driver = NotingDriver()
    memory, swaps = swapping(CudaBackend(driver))
    steps = memory._default_stream.handle  # type: ignore[attr-defined]
    driver.noted.clear()
    swaps.move_out(BLOCKS, range(len(BLOCKS)))
    (moves,) = {stream for what, stream in driver.noted if what == "copy"}
    assert moves != steps
    piece = [("record", moves), ("copy", moves), ("record", moves)]
    assert driver.noted == [("record", steps), ("wait", moves), *piece, *piece, *piece]
    driver.noted.clear()
    memory.wait_for_swaps(lambda: {0, 1, 19})
    assert driver.noted == []
    memory.wait_for_swaps(lambda: {BLOCKS[0], BLOCKS[-1], 0})
    assert driver.noted == [("wait", steps), ("wait", steps)]


def test_swapped_blocks_arrive_before_their_memory_is_freed_without_close() -> None:
    """Everything is dropped at once, in whatever order a garbage collection takes it."""
    driver = NotingDriver()
    memory, swaps = swapping(CudaBackend(driver))
    swaps.move_out(BLOCKS, range(len(BLOCKS)))
    (moves,) = {stream for what, stream in driver.noted if what == "copy"}
    cycle: list[Any] = [memory, swaps]
    cycle.append(cycle)
    driver.noted.clear()
    del memory, swaps, cycle
    gc.collect()
    assert driver.noted.index(("host waits", moves)) < [what for what, _ in driver.noted].index("free")
    assert driver.memory == {}
    assert driver.retained.total() == 0


def check_round_trip(backend: CudaBackend, memory: KVMemory, swaps: SwapStream) -> None:
    """Blocks that are swapped out, overwritten and swapped in elsewhere have their values again."""
    cache, steps = memory.tensors["k_cache"], memory._default_stream
    held = []

    def write(blocks: list[int], value: int) -> None:
        for place, block in enumerate(blocks):
            array = np.full(cache.shape[1:], value + place, np.float16)
            held.append(array)
            row = Tensor.of(cache.buffer, cache.dtype, array.shape, block * array.nbytes)
            backend.transfer.copy_async(row, Tensor.of_numpy(array, CUDA), steps)

    write(BLOCKS, 1)
    swaps.move_out(BLOCKS, range(len(BLOCKS)))
    memory.wait_for_swaps(lambda: set(BLOCKS))
    write(BLOCKS, 100)
    swaps.move_in(range(len(BLOCKS)), BLOCKS[::-1])
    memory.wait_for_swaps(lambda: set(BLOCKS))
    result: Any = np.zeros(cache.shape, np.float16)
    backend.transfer.copy_async(Tensor.of_numpy(result, CUDA), cache, steps)
    steps.synchronize()
    for place, block in enumerate(BLOCKS[::-1]):
        assert (result[block] == 1 + place).all()
    backend.close()


@pytest.mark.parametrize("seed", range(4))
def test_swapped_blocks_are_restored_whatever_the_stream_order(seed: int, tmp_path: Path) -> None:
    with emulated_cuda(tmp_path, seed) as driver:
        backend = CudaBackend(driver)
        check_round_trip(backend, *swapping(backend))


@pytest.mark.parametrize("seed", range(2))
def test_blocks_are_swapped_to_a_peer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peer access is enabled in both directions, and blocks are in the memory of the other GPU."""
    driver, enabled = EmulatedDriver(seed, num_devices=2), []
    enable = driver.enable_peer_access

    def noted(other_context: int) -> None:
        enabled.append((driver._device(), driver.handles[other_context][1]))
        enable(other_context)

    monkeypatch.setattr(driver, "enable_peer_access", noted)
    backend = CudaBackend(driver)
    assert [backend.can_access_peer(0, other) for other in (0, 1)] == [False, True]
    memory, swaps = swapping(backend, DeviceId("cuda", 1))
    assert {tensor.buffer.device.index for tensor in swaps._on_host.values()} == {1}
    assert driver._pinned == {}
    assert sorted(enabled) == [(0, 1), (1, 0)]
    check_round_trip(backend, memory, swaps)
