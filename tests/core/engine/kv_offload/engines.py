"""Engines of the demo model that share a store, with prompts and counters for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.core.engine.kv_offload.stores import Store

from aethermind import RequestOutput, Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.kv_offload import KVOffload, KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.parts import EngineParts

PROMPT = [(7 * i) % 900 + 5 for i in range(50)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
NUM_BLOCKS = 12  # whole ones of 4 tokens that a prompt of 50 can reuse

OpenEngine = Callable[..., Engine]


@contextmanager
def opening(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenEngine]:
    """Opens the demo model with a store of the test's, or none, and closes all that it opened; what a machine measures
    decides nothing, and no time passes.
    """
    engines: list[Engine] = []
    monkeypatch.setattr("aethermind.engine.engine.KVOffload", partial(KVOffload, clock=lambda: 0.0))
    monkeypatch.setattr("aethermind.engine.kv_offload.offload.FetchCosts.is_worth_fetching", lambda *_: True)

    def start(store: Store | None, **options: Any) -> Engine:
        given = {"device": "numpy", "dtype": "float32", "max_model_len": 96, "block_size": 4, **options}
        parts = EngineParts.of(runtime, "demo", kv_store=None if store is None else "host:1MiB", **given)
        if store is not None:
            parts = replace(parts, open_kv_store=lambda: store)
        engines.append(Engine(parts, parts.compiled.source.tokenizer()))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def run(engine: Engine, *prompts: list[int], params: SamplingParams = PARAMS) -> list[RequestOutput]:
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    finished = {}
    while engine.has_unfinished:
        finished.update({output.request_id: output for output in engine.step() if output.finished})
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks
    return [finished[str(index)] for index in range(len(prompts))]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [one.token_ids for output in outputs for one in output.outputs]


def stats(engine: Engine) -> KVStoreStats:
    found = EngineStats.of(engine).kv_store
    assert found is not None
    return found


def flush(engine: Engine) -> None:
    assert engine.kv_offload is not None
    assert engine.kv_offload.flush(60)
