"""Models with recurrent layers and a KV store: a prompt continues from the last stored state, in any engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.core.engine.kv_offload.stores import Store
from tests.end_to_end.recurrent_model import OpenRecurrent, recurrent_models

from aethermind import SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.kv_offload import KVOffload, KVStoreStats
from aethermind.engine.kv_offload.states import state_key

KINDS = ["recurrent", "hybrid"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
OPTIONS = {"block_size": 4, "max_num_batched_tokens": 16}
FIRST = [7, 9, 8] * 11
LONGER = [*FIRST, *range(100, 150)]


@pytest.fixture
def open_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenRecurrent:
    """Opens a model; what a machine measures decides nothing, and no time passes."""
    monkeypatch.setattr("aethermind.engine.engine.KVOffload", partial(KVOffload, clock=lambda: 0.0))
    monkeypatch.setattr("aethermind.engine.kv_offload.offload.FetchCosts.is_worth_fetching", lambda *_: True)
    return recurrent_models(monkeypatch, tmp_path)


def answer(engine: Engine, *prompts: list[int]) -> list[tuple[list[int], int]]:
    """The answers to prompts, asked together, and the tokens of each that were reused."""
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, GREEDY)
    last = {}
    while engine.has_unfinished:
        last.update({output.request_id: output for output in engine.step()})
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks
    outputs = [last[str(index)] for index in range(len(prompts))]
    return [(output.outputs[0].token_ids, output.num_cached_tokens) for output in outputs]


def alone(open_model: OpenRecurrent, kind: str, *prompts: list[int]) -> list[list[int]]:
    engine = open_model(kind, enable_prefix_caching=False, **OPTIONS)
    return [answer(engine, prompt)[0][0] for prompt in prompts]


def fill(open_model: OpenRecurrent, kind: str, on: str = "cpu") -> tuple[Store, KVStoreStats]:
    """A store with the blocks and states of FIRST, which one engine computed."""
    engine = open_model(kind, store := Store(), device=on, **OPTIONS)
    answer(engine, FIRST)
    assert engine.kv_offload is not None
    assert engine.kv_offload.flush(60)
    stats = engine.kv_offload.stats
    engine.close()
    return store, stats


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["cpu", "sim"])
def test_another_engine_continues_from_a_stored_state(open_model: OpenRecurrent, kind: str, on: str) -> None:
    """From the last before the prompt's end, near or far; what it computes it adds to the store."""
    other = [5] * 20
    expected = alone(open_model, kind, FIRST, LONGER, other)
    store, stats = fill(open_model, kind, on)
    num_blocks = 0 if kind == "recurrent" else (len(FIRST) + 11) // 4
    assert stats.num_stored == len(store.values)
    assert num_blocks < len(store.values) <= num_blocks + 4
    engine = open_model(kind, store, device=on, **OPTIONS)
    answers = answer(engine, LONGER, FIRST, other, FIRST)
    assert [each for each, _ in answers] == [expected[1], expected[0], expected[2], expected[0]]
    assert [reused for _, reused in answers] == [32, 32, 0, 32]
    assert engine.kv_offload is not None
    assert engine.kv_offload.flush(60)
    stats = engine.kv_offload.stats
    assert (stats.num_hits, stats.num_errors) == (8, 0)
    third = open_model(kind, store, device=on, **OPTIONS)
    assert answer(third, [*LONGER, *expected[1], 3]) == [(*alone(open_model, kind, [*LONGER, *expected[1], 3]), 92)]


@pytest.mark.parametrize("damage", ["no state", "a changed state", "no block", "no snapshots"])
def test_without_a_valid_state_the_prompt_is_computed(open_model: OpenRecurrent, damage: str) -> None:
    (expected,) = alone(open_model, "hybrid", FIRST)
    store, _ = fill(open_model, "hybrid")
    with_snapshots = open_model("hybrid", store, **OPTIONS)
    keys = with_snapshots.kv_offload._prefix_cache.keys(FIRST)  # type: ignore[union-attr]
    states = [key for key in map(state_key, keys) if key in store.values]
    assert states
    if damage == "no block":
        del store.values[keys[1]]
    for key in states:
        if damage == "no state":
            del store.values[key]
        if damage == "a changed state":
            store.values[key] = store.values[key][:-1] + b"?"
    options = {"max_num_seqs": 1} if damage == "no snapshots" else {}
    engine = open_model("hybrid", store, **{**OPTIONS, **options})
    ((answered, reused),) = answer(engine, FIRST)
    assert answered == expected
    assert reused == (32 if damage == "no snapshots" else 0)
    assert engine.kv_offload is not None
    assert engine.kv_offload.stats.num_errors == (len(states) if damage == "a changed state" else 0)
    assert engine.kv_offload.flush(60)
    assert all(state_key(key) in store.values for key in keys[7:8]), "a lost state is written again"
