"""A single answer asks the scheduler only for its prompt, and each later step computes one token."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine

PROMPT = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41]
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


def observe(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """The calls of the scheduler from now on, as numbers of running requests, and the tokens of each step."""
    calls: list[int] = []
    sizes: list[int] = []
    schedule = type(engine.scheduler).schedule

    def counting(scheduler: Any, now: float, waiting: Any, running: Any, budget: Any) -> Any:
        calls.append(len(running))
        return schedule(scheduler, now, waiting, running, budget)

    def run(executor: Any, symbols: tuple[int, ...], _: Any) -> None:
        sizes.append(symbols[0])
        executor.run(symbols)

    monkeypatch.setattr(type(engine.scheduler), "schedule", counting)
    engine.runner.observer = run
    return calls, sizes


def answer(engine: Engine, name: str) -> list[int]:
    token_ids: list[int] = []
    while engine.has_unfinished:
        for output in engine.step():
            if output.request_id == name:
                token_ids = output.outputs[0].token_ids
    return token_ids


def test_a_decode_step_of_one_request_computes_one_token_without_the_scheduler(
    runtime: Runtime, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(runtime, device, block_size=4)
    calls, sizes = observe(engine, monkeypatch)
    engine.add_request("a", PROMPT, GREEDY)
    assert len(answer(engine, "a")) == 9
    assert calls == [0], "only for the prompt"
    assert sizes == [len(PROMPT), *[1] * 8], "the second step computes one token of eleven"


def test_the_answer_is_that_of_a_scheduled_one(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, scheduled = open_engine(runtime, block_size=4), open_engine(runtime, block_size=4)
    fast.add_request("a", PROMPT, GREEDY)
    expected = answer(fast, "a")
    monkeypatch.setattr("aethermind.engine.steps.step_pipeline.schedule_lone_decode", lambda *_: None)
    scheduled.add_request("a", PROMPT, GREEDY)
    assert answer(scheduled, "a") == expected
    assert fast.cache.num_available_blocks == scheduled.cache.num_available_blocks


def test_the_scheduler_is_asked_when_another_request_waits_or_runs(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(runtime, "null", max_num_seqs=1)
    calls, _ = observe(engine, monkeypatch)
    engine.add_request("a", PROMPT, GREEDY)
    engine.add_request("b", PROMPT, GREEDY)
    engine.step()
    engine.step()
    assert calls == [0, 1]
    engine.abort("b")
    engine.step()
    assert calls == [0, 1]


def test_a_request_without_a_free_block_is_left_to_the_scheduler(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(runtime, "null", num_kv_blocks=4, block_size=4, enable_prefix_caching=False)
    calls, _ = observe(engine, monkeypatch)
    engine.cache.open("another")
    engine.cache.reserve("another", 4)
    engine.add_request("a", PROMPT, GREEDY)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert calls == [0, 1], "ten tokens and two more fill the three blocks that are left"
    assert outputs[-1].error is not None
