"""Asynchronous swaps on a device with delayed streams: a missing wait gives wrong content under some seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.kv_memory.swap_stream import SwapStream
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.hal.stream import Stream
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice
from aethermind_sim.backend import SimBackend

SIM = DeviceId("sim", 0)
NUM_BLOCKS = 20
TYPES = {
    "k_cache": TensorType(DType.INT8, (NUM_BLOCKS, 2, 4, 3)),
    "k_scale": TensorType(DType.FLOAT32, (NUM_BLOCKS, 2, 4)),
}
SEEDS = range(12)
VICTIM, GUEST = list(range(1, 18)), list(range(2, 19))
ON_HOST = list(range(3, 20))


class Memory:
    """A cache in which every block of the victim's differs from all others, and what swaps it."""

    def __init__(self, seed: int) -> None:
        self.backend = SimBackend(seed)
        opened = cast(OpenDevice, SimpleNamespace(backend=self.backend, device=SIM))
        self.memory = KVMemory(TYPES, opened)
        self.costs = SwapVsRecomputeCosts(seconds_per_byte=1.0)
        swaps = self.memory.swap_stream(NUM_BLOCKS, self.costs.observe_move)
        assert swaps is not None
        self.swaps: SwapStream = swaps
        self.steps: Stream = self.backend.streams.default()
        self.held: list[Tensor] = []
        self.write(VICTIM, 1)

    def write(self, blocks: list[int], value: int) -> None:
        """A step that writes blocks: `value` and the place in the list to each."""
        for tensor in self.memory.tensors.values():
            for place, block in enumerate(blocks):
                source = Tensor.of_numpy(np.full(tensor.shape[1:], value + place, tensor.dtype.numpy), SIM)
                offset_bytes = tensor.offset_bytes + block * source.nbytes
                row = Tensor.of(tensor.buffer, tensor.dtype, source.shape, offset_bytes)
                self.backend.transfer.copy_async(row, source, self.steps)
                self.held.append(source)

    def read(self, blocks: list[int]) -> bool:
        """A step that reads blocks: whether they hold what `write(…, 1)` wrote."""
        results = []
        for tensor in self.memory.tensors.values():
            results.append(Tensor.of_numpy(np.zeros(tensor.shape, tensor.dtype.numpy), SIM))
            self.backend.transfer.copy_async(results[-1], tensor, self.steps)
        self.steps.synchronize()
        arrays = [result.numpy() for result in results]
        return all((array[block] == 1 + place).all() for array in arrays for place, block in enumerate(blocks))

    def swap_out_write_and_swap_in(self, *, bug: str = "") -> bool:
        """The victim goes, a guest writes its blocks, and goes; the victim comes back elsewhere and is read."""
        self.swaps.move_out(VICTIM, ON_HOST)
        if bug != "reused":
            self.memory.wait_for_swaps(lambda: set(GUEST))
        self.write(GUEST, 50)
        back = list(reversed(GUEST))
        self.swaps.move_in(ON_HOST, back)
        if bug != "arriving":
            self.memory.wait_for_swaps(lambda: set(back))
        return self.read(back)


@pytest.mark.parametrize("bug", ["reused", "arriving"])
def test_a_block_in_flight_is_waited_for(bug: str) -> None:
    assert all(Memory(seed).swap_out_write_and_swap_in() for seed in SEEDS)
    assert not all(Memory(seed).swap_out_write_and_swap_in(bug=bug) for seed in SEEDS)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Events that a step was made to wait for."""
    found: list[Any] = []
    from aethermind_sim.streams import SimStream

    wait_event = SimStream.wait_event

    def noting(self: SimStream, event: Any) -> None:
        found.append(self)
        wait_event(self, event)

    monkeypatch.setattr(SimStream, "wait_event", noting)
    return found


def test_steps_wait_only_for_moves_of_their_own_blocks(waits: list[Any]) -> None:
    memory = Memory(0)
    memory.swaps.move_out(VICTIM, ON_HOST)
    assert memory.swaps.is_busy
    assert memory.steps not in waits
    memory.memory.wait_for_swaps(lambda: {0, 18, 19})
    assert memory.steps not in waits
    memory.memory.wait_for_swaps(lambda: {0, VICTIM[9]})
    assert waits.count(memory.steps) <= 1


def test_copies_of_blocks_between_steps_wait_for_all_moves() -> None:
    for seed in SEEDS:
        memory = Memory(seed)
        memory.swaps.move_out(VICTIM, ON_HOST)
        memory.memory.wait_for_swaps(lambda: set(GUEST))
        memory.write(GUEST, 50)
        memory.swaps.move_in(ON_HOST, GUEST)
        host = memory.memory.alloc_staging_blocks(len(GUEST), has_own_stream=True)
        host.move_out(GUEST, range(len(GUEST)))
        assert all((rows == rows[:, :1]).all() for name, rows in host.rows().items() if name == "k_cache")
        assert host.rows()["k_cache"][:, 0].tolist() == [1 + place for place in range(len(GUEST))]


def test_move_times_are_measured_on_the_device() -> None:
    memory = Memory(3)
    memory.swaps.move_out(VICTIM, ON_HOST)
    memory.backend.devices.synchronize(0)
    memory.memory.wait_for_swaps()
    assert not memory.swaps.is_busy
    assert memory.costs.seconds_per_byte < 1.0
