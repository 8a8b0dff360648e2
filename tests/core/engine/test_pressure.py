"""A cache too small for its load: answers are those of one with room, whether victims are swapped or recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.loader import plan_model

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + index)] for index in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
CACHE = {"block_size": 4, "max_model_len": 32, "enable_prefix_caching": False}


class HostStore:
    """Keeps the bytes of blocks, and poisons the blocks they came from."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.kept: dict[str, list[Any]] = {}
        self.num_saved = 0

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        self.kept[seq_id] = [state[list(blocks)].copy() for state in self.states]
        for state in self.states:
            state[list(blocks)] = np.nan
        self.num_saved += 1
        return True

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        for state, content in zip(self.states, self.kept.pop(seq_id), strict=True):
            state[list(blocks)] = content

    def drop(self, seq_id: str) -> None:
        del self.kept[seq_id]


def run(engine: Engine) -> tuple[list[list[int]], int]:
    """All answers, and how often somebody gave way."""
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, PARAMS)
    requests, finished = list(engine.waiting), {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    return [finished[str(index)] for index in range(len(PROMPTS))], sum(one.num_preemptions for one in requests)


@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
@pytest.mark.parametrize("is_swapping", [True, False])
def test_answers_under_pressure_are_those_without(
    runtime: Runtime, device: str, policy: str, is_swapping: bool
) -> None:
    expected, num_preemptions = run(open_engine(runtime, device, **CACHE))
    assert num_preemptions == 0
    store = HostStore()
    options: dict[str, Any] = {"device": device, "dtype": "float32", "scheduling_policy": policy, **CACHE}
    planned = plan_model(runtime, "demo", num_kv_blocks=9, **options)
    engine = Engine(planned, planned.source.tokenizer(), swap_store=store)
    store.states = [state.numpy() for state in engine.runner._states.values()]
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = (0.0, 1.0) if is_swapping else (1.0, 0.0)
    answers, num_preemptions = run(engine)
    assert answers == expected
    assert num_preemptions > 0
    assert (store.num_saved > 0) == is_swapping
    assert store.kept == {}
    assert engine.cache.num_free_blocks == 9
    if is_swapping:
        assert 0 < engine.costs.seconds_per_byte < 1.0, "moves are measured"
