"""Profiles: every call of every step once, its cost that of the model, its answer the one without a profiler."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime
from aethermind.cli.bench.workload import Workload
from aethermind.engine.engine import Engine
from aethermind.engine.profiler import Profiler, StepProfile, total

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def engine(request: pytest.FixtureRequest, runtime: Runtime) -> Engine:
    return open_engine(runtime, request.param)


@pytest.fixture(scope="module")
def steps(engine: Engine) -> list[StepProfile]:
    expected = answer(engine, PROMPT, 4)
    profiler = Profiler(engine.planned.operators, repeat=2)
    engine.runner.observer = profiler
    try:
        assert answer(engine, PROMPT, 4) == expected
    finally:
        engine.runner.observer = None
    return profiler.steps


def test_each_step_is_told_with_its_tokens(steps: list[StepProfile]) -> None:
    told = [(step.phase, step.num_tokens, step.num_context_tokens) for step in steps]
    assert told == [("prefill", 5, 5), ("decode", 1, 6), ("decode", 1, 7), ("decode", 1, 8)]


def test_each_call_of_the_plan_is_there_once(engine: Engine, steps: list[StepProfile]) -> None:
    plan = engine.planned.compiled.plan
    for step in steps:
        assert [call.name for call in step.calls] == [planned.source for planned in plan.steps]
        assert [call.kernel for call in step.calls] == [planned.kernel.name for planned in plan.steps]
        assert [call.layer for call in step.calls] == plan.layers()
        assert step.unmarked_s > 0
        assert step.marked_s > 0
        assert all(call.seconds >= 0 for call in step.calls)
        assert step.seconds == sum(call.seconds for call in step.calls) > 0
    embedding = next(call for call in steps[0].calls if call.operator == "embedding")
    assert embedding.inputs[0] == "int32[5]"


def test_products_and_attention_cost_what_the_workload_counts(engine: Engine, steps: list[StepProfile]) -> None:
    workload = Workload(engine.planned.compiled.plan, engine.planned.operators)
    counted = {"linear", "lm_head", "gate_up_silu", "qkv_rope_cache_write", "paged_attention"}
    prefill, decode = (total([step], key=lambda call: call.operator in counted)[True].cost for step in steps[:2])
    assert prefill.flops == workload.prefill_flops(5)
    assert decode.bytes_read > workload.weight_bytes + workload.kv_bytes(6)


def test_totals_by_any_key_add_up(steps: list[StepProfile]) -> None:
    seconds = sum(step.seconds for step in steps)
    num_calls = sum(len(step.calls) for step in steps)
    for key in (lambda call: call.operator, lambda call: call.layer, lambda call: call.kernel):
        totals = total(steps, key).values()
        assert sum(one.num_calls for one in totals) == num_calls
        assert sum(one.seconds for one in totals) == pytest.approx(seconds)
    assert total([], key=lambda call: call.operator) == {}
