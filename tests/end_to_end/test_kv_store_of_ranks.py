"""Engines on one rank and on several share a store: entries hold the heads of all ranks and do not say how many."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.engine.kv_offload.engines import (
    NUM_BLOCKS,
    PARAMS,
    PROMPT,
    OpenEngine,
    opening,
    run,
    stats,
    tokens,
)
from tests.core.engine.kv_offload.stores import Store
from tests.end_to_end.models import copy_demo
from tests.processes import await_end

from aethermind import Runtime
from aethermind.cache.serialization import read_blocks
from aethermind.engine.engine import Engine
from aethermind.engine.executors.multiproc import MultiprocExecutor
from aethermind.engine.parts import EngineParts
from aethermind.errors import EngineDeadError


@pytest.fixture
def open_engine(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenEngine]:
    """Opens the demo model on so many ranks."""
    with opening(runtime, monkeypatch) as start:
        yield lambda store, size, **options: start(
            store, **{"device": "cpu", "num_threads": 1, "tensor_parallel_size": size, **options}
        )


def pids(engine: Engine) -> list[int]:
    assert isinstance(engine.executor, MultiprocExecutor)
    return engine.executor.pids


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_engines_of_any_number_of_ranks_share_entries(open_engine: OpenEngine, kv_cache_dtype: str) -> None:
    stores = {1: Store(), 2: Store()}
    answers = {}
    for size, store in stores.items():
        writer = open_engine(store, size, kv_cache_dtype=kv_cache_dtype)
        (output,) = run(writer, PROMPT)
        assert output.num_cached_tokens == 0
        answers[size] = output.outputs[0].token_ids
        writer.close()  # which writes what waits to be written
    assert answers[1] == answers[2]
    assert len(stores[2].values) == NUM_BLOCKS + 1
    assert_alike(stores[1], stores[2])
    for of_writer, size in ((2, 2), (2, 1), (1, 2)):
        reader = open_engine(stores[of_writer], size, kv_cache_dtype=kv_cache_dtype)
        (output,) = run(reader, PROMPT)
        assert output.outputs[0].token_ids == answers[1]
        assert output.num_cached_tokens == 4 * NUM_BLOCKS
        assert (stats(reader).num_hits, stats(reader).num_misses, stats(reader).num_errors) == (NUM_BLOCKS, 0, 0)
        reader.close()


def test_ranks_that_share_a_kv_head(open_engine: OpenEngine) -> None:
    """Four ranks of a model with two heads of keys: each entry has a head once, and each rank its own."""
    store = Store()
    (written,) = run(engine := open_engine(store, 4), PROMPT)
    engine.close()
    for size in (1, 4):
        (output,) = run(open_engine(store, size), PROMPT)
        assert output.outputs[0].token_ids == written.outputs[0].token_ids
        assert output.num_cached_tokens == 4 * NUM_BLOCKS


def assert_alike(one: Store, other: Store) -> None:
    """The same keys, and values that differ by rounding: of codes by one step, which a scale makes small."""
    assert one.values.keys() == other.values.keys()
    for key, data in one.values.items():
        theirs, ours = (read_blocks(value).tensors for value in (data, other.values[key]))
        assert {name: (tensor.dtype_name, tensor.shape) for name, tensor in theirs.items()} == {
            name: (tensor.dtype_name, tensor.shape) for name, tensor in ours.items()
        }
        for name, tensor in theirs.items():
            if tensor.dtype_name == "float32":
                values, expected = (np.frombuffer(one.data, np.float32) for one in (ours[name], tensor))
                np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)
            else:
                codes, wanted = (np.frombuffer(one.data, np.int8).astype(int) for one in (ours[name], tensor))
                assert np.mean(np.abs(codes - wanted) <= 1) > 0.999


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 1}], ids=["own-heads", "one-head-for-both"])
def test_blocks_are_restored_bit_for_bit(runtime: Runtime, options: dict[str, int], tmp_path: Path) -> None:
    """Wherever they are put, through the memory of both ranks."""
    model = copy_demo(tmp_path / "model", options)
    given: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 40, "max_model_len": 96}
    parts = EngineParts.of(runtime, model, tensor_parallel_size=2, kv_cache_dtype="int8", load_format="dummy", **given)
    compiled = parts.compiled
    executor = parts.create_executor(compiled)
    try:
        memory = executor.kv_memory
        num_heads = compiled.model.config.num_key_value_heads
        assert {name: shape[0] for name, (_, shape) in memory.block_types.items()} == dict.fromkeys(
            memory.tensors, num_heads
        )
        written, read = memory.alloc_staging_blocks(8), memory.alloc_staging_blocks(8, has_own_stream=True)
        random = np.random.default_rng(0)
        for rows in written.rows().values():
            rows[:] = random.integers(0, 256, rows.shape, np.uint8)
        blocks = random.permutation(40)[:8].tolist()
        written.move_in(range(8), blocks)
        read.move_out(blocks[::-1], range(8))
        for name, rows in read.rows().items():
            np.testing.assert_array_equal(rows[::-1], written.rows()[name])
        assert sum(rows.size for rows in read.rows().values()) == 8 * compiled.cache_spec.bytes_per_block
    finally:
        executor.close()


def test_blocks_are_written_and_fetched_during_preemption(open_engine: OpenEngine) -> None:
    """Of a cache too small for all, what is stored is right all the same."""
    prompts = [[(start * 97 + i * 13) % 900 for i in range(13)] for start in range(4)]
    long = replace(PARAMS, max_tokens=16)
    expected = tokens(run(open_engine(None, 1), *prompts, params=long))
    store = Store()
    for _ in range(2):
        engine = open_engine(store, 2, num_kv_blocks=14, swap_space=0.01)
        engine.costs.seconds_per_token = 1e6  # so that requests are swapped, not computed again
        assert tokens(run(engine, *prompts, params=long)) == expected
        assert engine.num_preemptions > 0
        assert stats(engine).num_errors == 0
        engine.close()
    outputs = run(open_engine(store, 1), *prompts, params=long)
    assert tokens(outputs) == expected
    assert [output.num_cached_tokens for output in outputs] == [12] * 4


def test_a_failing_or_damaged_store_changes_no_answer(open_engine: OpenEngine) -> None:
    store = Store()
    engine = open_engine(store, 2)
    expected = tokens(run(engine, PROMPT))
    engine.close()
    key = list(store.values)[5]
    store.values[key] = store.values[key][:-1] + bytes([store.values[key][-1] ^ 1])
    engine = open_engine(store, 2)
    (output,) = run(engine, PROMPT)
    assert (tokens([output]), output.num_cached_tokens, stats(engine).num_errors) == (expected, 20, 1)
    engine.close()
    store.error = OSError(28, "No space left on device")
    engine = open_engine(store, 2)
    (output,) = run(engine, PROMPT)
    assert (tokens([output]), output.num_cached_tokens) == (expected, 0)
    engine.close()
    store.error = None
    (output,) = run(open_engine(store, 2), PROMPT)
    assert output.num_cached_tokens == 4 * NUM_BLOCKS, "what was there is there still, and the bad entry is whole again"


def test_a_dying_rank_ends_writing_and_leaves_no_bad_entry(open_engine: OpenEngine) -> None:
    store = Store()
    engine = open_engine(store, 2)
    run(engine, PROMPT)
    assert engine.kv_offload is not None
    assert engine.kv_offload.flush(60)
    whole = dict(store.values)
    (pid,) = pids(engine)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"Rank 1 of 2 was killed by SIGKILL\."):
        run(engine, [9, *PROMPT])
    engine.close()
    await_end(pid)
    assert store.is_closed
    assert store.values == whole
    (output,) = run(open_engine(store, 1), PROMPT)
    assert output.num_cached_tokens == 4 * NUM_BLOCKS


def test_a_rank_that_dies_while_blocks_are_written(open_engine: OpenEngine) -> None:
    """The writer asks the other rank for its part when that has gone: it stops, and no thread waits for it."""
    store = Store()
    engine = open_engine(store, 2)
    store.get = lambda keys: [None for _ in keys]  # type: ignore[method-assign]
    store.gate.clear()
    run(engine, PROMPT[:9])  # the blocks of this one are being written
    while not store.calls:
        pass
    run(engine, [9, *PROMPT])  # these wait for their turn
    (pid,) = pids(engine)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    store.gate.set()
    offload = engine.kv_offload
    assert offload is not None
    offload.flush(60)
    assert offload.stats.num_dropped >= NUM_BLOCKS
    engine.close()
    assert store.is_closed
