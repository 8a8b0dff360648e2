"""A cache too small for its load: answers equal those of a large one, with swapping and with recomputation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime, SamplingParams
from aethermind.cache import BlockPool, CacheOutcome, CacheState
from aethermind.engine.engine import Engine
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError, OutOfMemoryError

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + index)] for index in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
CACHE = {"block_size": 4, "max_model_len": 32, "enable_prefix_caching": False}
NUM_BLOCKS_OF_LOAD = sum(-(-(len(prompt) + 16) // 4) for prompt in PROMPTS)
QUARTER = NUM_BLOCKS_OF_LOAD // 4
GIB = 2**30


class PoisoningPool(BlockPool):
    """Whoever reads a block that was freed reads what no sequence ever wrote."""

    __slots__ = ("_states", "num_poisoned")

    def __init__(self, engine: Engine) -> None:
        self.num_poisoned = 0
        super().__init__(engine.cache.pool.num_blocks)
        self._states = [tensor.numpy() for tensor in engine.runner.kv_memory.tensors.values()]

    def release(self, block: int) -> None:
        super().release(block)
        if self.ref_count(block) == 0:
            self.num_poisoned += 1
            for state in self._states:
                state[block] = 111 if state.dtype == np.int8 else np.nan


@pytest.fixture(params=["auto", "int8"])
def kv_cache_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_pressed(
    runtime: Runtime, device: str, *, num_swap_blocks: int, is_swapping: bool = True, **options: Any
) -> Engine:
    """An engine with a quarter of the blocks that the load needs, and a fixed choice of swapping or recomputation."""
    options = {**CACHE, **options}
    spec = compile_model(runtime, "demo", device=device, dtype="float32", **options).cache_spec
    swap_space = num_swap_blocks * spec.bytes_per_block / GIB
    engine = open_engine(runtime, device, num_kv_blocks=QUARTER, swap_space=swap_space, **options)
    assert engine.compiled.num_swap_blocks == num_swap_blocks
    engine.cache._allocator.pool = PoisoningPool(engine)
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = (0.0, 1e6) if is_swapping else (1e6, 0.0)
    return engine


def add_load(engine: Engine) -> list[Request]:
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, PARAMS)
    return list(engine.waiting)


def run(engine: Engine) -> tuple[list[list[int]], int]:
    """All answers, and the number of preemptions."""
    requests, finished = add_load(engine), {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    return [finished[str(index)] for index in range(len(PROMPTS))], sum(one.num_preemptions for one in requests)


def assert_idle(engine: Engine) -> None:
    stats = EngineStats.of(engine)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_swapped_blocks == 0
    assert stats.memory_pressure == 0.0


@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_answers_after_swapping_are_those_without_pressure(
    runtime: Runtime, device: str, policy: str, kv_cache_dtype: str
) -> None:
    options = {"scheduling_policy": policy, "kv_cache_dtype": kv_cache_dtype}
    expected, num_preemptions = run(open_engine(runtime, device, **CACHE, **options))
    assert num_preemptions == 0
    engine = open_pressed(runtime, device, num_swap_blocks=NUM_BLOCKS_OF_LOAD, **options)
    answers, num_preemptions = run(engine)
    assert answers == expected
    assert isinstance(engine.cache.pool, PoisoningPool)
    assert engine.cache.pool.num_poisoned > NUM_BLOCKS_OF_LOAD
    stats = EngineStats.of(engine)
    assert stats.swapped_out_bytes == stats.swapped_in_bytes
    assert stats.swapped_out_bytes >= num_preemptions * engine.compiled.cache_spec.bytes_per_block > 0
    assert 0 < engine.costs.seconds_per_byte < 1.0, "moves are measured"
    assert_idle(engine)


def test_answers_after_recomputing_are_those_without_pressure(
    runtime: Runtime, device: str, kv_cache_dtype: str
) -> None:
    expected, _ = run(open_engine(runtime, device, **CACHE, kv_cache_dtype=kv_cache_dtype))
    options: dict[str, Any] = {"num_swap_blocks": NUM_BLOCKS_OF_LOAD, "is_swapping": False}
    engine = open_pressed(runtime, device, kv_cache_dtype=kv_cache_dtype, **options)
    answers, num_preemptions = run(engine)
    assert answers == expected
    assert num_preemptions > 0
    assert EngineStats.of(engine).swapped_out_bytes == 0
    assert_idle(engine)


def test_a_victim_that_does_not_fit_the_swap_store_is_recomputed(runtime: Runtime, device: str) -> None:
    expected, _ = run(open_engine(runtime, device, **CACHE))
    engine = open_pressed(runtime, device, num_swap_blocks=2)
    requests, most = add_load(engine), 0.0
    while engine.has_unfinished:
        for output in engine.step():
            assert not output.finished or output.outputs[0].token_ids == expected[int(output.request_id)]
        stats = EngineStats.of(engine)
        assert stats.num_swapped_blocks <= 2
        most = max(most, stats.memory_pressure)
    assert engine.swap_store is not None
    assert 0 < engine.swap_store.num_moved_out < 2 * sum(request.num_preemptions for request in requests)
    assert 0.5 < most <= 1.0
    assert_idle(engine)


def test_aborts_of_swapped_requests_leak_nothing(runtime: Runtime, kv_cache_dtype: str) -> None:
    engine = open_pressed(runtime, "numpy", num_swap_blocks=NUM_BLOCKS_OF_LOAD, kv_cache_dtype=kv_cache_dtype)
    add_load(engine)
    num_aborted = 0
    while engine.has_unfinished:
        engine.step()
        for request in [one for one in engine.waiting if one.num_computed_tokens]:
            held = EngineStats.of(engine).num_swapped_blocks
            engine.abort(request.request_id)
            assert EngineStats.of(engine).num_swapped_blocks < held
            num_aborted += 1
    assert num_aborted > 0
    assert_idle(engine)


def test_a_swap_space_that_cannot_be_allocated_is_refused(runtime: Runtime) -> None:
    with pytest.raises(OutOfMemoryError, match="Lower swap_space"):
        open_engine(runtime, swap_space=1e6)
    with pytest.raises(InvalidArgumentError, match=r"holds no block of \d+ bytes. Raise swap_space"):
        open_engine(runtime, swap_space=1e-9)
    with pytest.raises(InvalidArgumentError, match="swap_space should be GiB of memory, 0 for none, got -1"):
        open_engine(runtime, swap_space=-1)


def test_a_parked_sequence_is_swapped_out_and_restored(runtime: Runtime, device: str) -> None:
    options = {"block_size": 4, "num_kv_blocks": 8}
    expected = answer(open_engine(runtime, device, **options), PROMPTS[4], 8)
    spec = compile_model(runtime, "demo", device=device, dtype="float32", **options).cache_spec
    engine = open_engine(runtime, device, swap_space=8 * spec.bytes_per_block / GIB, **options)
    cache, states = engine.cache, [tensor.numpy() for tensor in engine.runner.kv_memory.tensors.values()]
    cache.open("parked")
    cache.reserve("parked", 24)
    cache.commit("parked", 24)
    for state in states:
        state[cache.block_table("parked")] = 0.5
    assert cache.park("parked") is CacheOutcome.OK
    assert cache.state("parked") is CacheState.STANDBY
    assert answer(engine, PROMPTS[4], 8) == expected
    assert cache.state("parked") is CacheState.SWAPPED
    assert cache.resume("parked") is CacheOutcome.OK
    for state in states:
        assert (state[cache.block_table("parked")] == 0.5).all()
