"""Memory of the KV cache goes back to the system while the host's is short, and answers do not change."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import EngineDeadError, InvalidArgumentError
from aethermind.hal.device import DeviceUsage
from aethermind.hal.host_memory import discard_pages

PROMPT = [(7 * token) % 900 + 5 for token in range(100)]
OPTIONS: dict[str, Any] = {"max_model_len": 256, "num_kv_blocks": 2048, "device_memory_threshold": 0.9}


def resident_pages(address: int, nbytes: int) -> int:
    """The pages of a range that are in memory, by mincore(2)."""
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    found = (ctypes.c_ubyte * (-(-(address + nbytes - begin) // mmap.PAGESIZE)))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(address + nbytes - begin), found) == 0
    return sum(state & 1 for state in found)


def resident_of(engine: Engine) -> int:
    tensors = engine.runner.kv_memory.block_tensors.values()
    return sum(resident_pages(tensor.address, tensor.nbytes) for tensor in tensors)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The fraction of the host's memory that the system reports as used; no thread reads it."""
    fraction = [0.5]
    monkeypatch.setattr(
        "aethermind_cpu.backend.CpuBackend.usage",
        lambda self, index: DeviceUsage(f"cpu:{index}", int(1000 * fraction[0]), 1000),
    )
    monkeypatch.setattr("aethermind.engine.kv_memory.memory_pressure.MemoryPressure.watch", lambda self, engine: None)
    return fraction


def test_whole_pages_are_returned() -> None:
    memory = mmap.mmap(-1, 8 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * len(memory)
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    address = ctypes.addressof(view)
    assert discard_pages(address + 1, 4 * mmap.PAGESIZE) == 3 * mmap.PAGESIZE
    assert memory[: mmap.PAGESIZE] == b"x" * mmap.PAGESIZE
    assert memory[mmap.PAGESIZE : 4 * mmap.PAGESIZE] == bytes(3 * mmap.PAGESIZE)
    assert memory[4 * mmap.PAGESIZE :] == b"x" * (4 * mmap.PAGESIZE)
    assert discard_pages(address + 1, mmap.PAGESIZE) == 0
    del view


def test_memory_of_idle_blocks_is_returned(runtime: Runtime, used: list[float]) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    expected = answer(engine, PROMPT, 100)
    touched = resident_of(engine)
    assert touched > 0
    assert engine.relieve_memory_pressure() == 0
    assert resident_of(engine) == touched, "half of the host's memory is free"
    used[0] = 0.95
    while engine.cache.pool.num_used:
        assert engine.relieve_memory_pressure() > 0
    assert resident_of(engine) < touched / 4
    assert answer(engine, PROMPT, 100) == expected
    engine.close()


def test_blocks_in_use_remain(runtime: Runtime, used: list[float]) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    expected = answer(engine, PROMPT, 40)
    used[0] = 1.0
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    engine.add_request("pressed", PROMPT, params)
    while engine.has_unfinished:
        outputs = engine.step()
        engine.relieve_memory_pressure()
    assert outputs[0].outputs[0].token_ids == expected
    engine.close()


def test_idle_sessions_are_swapped_out_and_return(runtime: Runtime, used: list[float]) -> None:
    engine = open_engine(runtime, "cpu", swap_space=0.1, **OPTIONS)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

    def turn(prompt: list[int]) -> list[int]:
        engine.add_request("turn", prompt, params, options=RequestOptions(session="tale"))
        while engine.has_unfinished:
            (output,) = engine.step()
        return output.outputs[0].token_ids

    first = turn(PROMPT)
    used[0] = 0.95
    while engine.cache.pool.num_used:
        engine.relieve_memory_pressure()
    (session,) = engine.manage_session("list")
    assert session.state == "swapped"
    longer = PROMPT + first + [17, 9]
    found = turn(longer)
    assert engine.swap_store is not None
    assert engine.swap_store.num_moved_in > 0
    engine.close()
    plain = open_engine(runtime, "cpu", max_model_len=256)
    assert found == answer(plain, longer, 20)
    plain.close()


def test_the_thread_ends_with_the_engine(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aethermind.engine.kv_memory.memory_pressure._INTERVAL_S", 0.0)
    monkeypatch.setattr("aethermind_cpu.backend.CpuBackend.usage", lambda self, index: DeviceUsage("cpu:0", 1, 1))
    engine = open_engine(runtime, "cpu", **OPTIONS)
    answer(engine, PROMPT, 20)
    engine.close()
    with pytest.raises(EngineDeadError):
        engine.relieve_memory_pressure()


@pytest.mark.parametrize("device", ["numpy", "sim"])
def test_devices_that_keep_their_memory_are_refused(runtime: Runtime, device: str) -> None:
    with pytest.raises(InvalidArgumentError, match="holds it until the engine ends"):
        open_engine(runtime, device, fallback="allow", **OPTIONS)
