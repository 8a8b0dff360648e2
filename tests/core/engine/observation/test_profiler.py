"""Profiles: every call of every step once, its cost that of the model, its answer the one without a profiler."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime
from aethermind.engine.engine import Engine
from aethermind.engine.observation.profiler import Profiler, StepProfile, total
from aethermind.engine.observation.roofline import StepShape, min_seconds
from aethermind.hal.backend import MeasuredLimits
from aethermind.hal.dtype import DType

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def engine(request: pytest.FixtureRequest, runtime: Runtime) -> Engine:
    return open_engine(runtime, request.param)


@pytest.fixture(scope="module")
def steps(engine: Engine) -> list[StepProfile]:
    expected = answer(engine, PROMPT, 4)
    profiler = Profiler(engine.compiled.operators, engine.runner.kv_memory, repeat=2)
    engine.runner.observer = profiler
    try:
        assert answer(engine, PROMPT, 4) == expected
    finally:
        engine.runner.observer = None
    return profiler.steps


def test_each_step_is_recorded_with_its_tokens(steps: list[StepProfile]) -> None:
    recorded = [(step.phase, step.num_tokens, step.num_context_tokens) for step in steps]
    assert recorded == [("prefill", 5, 5), ("decode", 1, 6), ("decode", 1, 7), ("decode", 1, 8)]


def test_each_call_of_the_plan_is_there_once(engine: Engine, steps: list[StepProfile]) -> None:
    plan = engine.compiled.step.plan
    for step in steps:
        assert [call.name for call in step.calls] == [compiled.source for compiled in plan.steps]
        assert [call.kernel for call in step.calls] == [compiled.kernel.name for compiled in plan.steps]
        assert [call.layer for call in step.calls] == plan.layers()
        assert step.unmarked_s > 0
        assert step.marked_s > 0
        assert all(call.seconds >= 0 for call in step.calls)
        assert step.seconds == sum(call.seconds for call in step.calls) > 0
    embedding = next(call for call in steps[0].calls if call.operator == "embedding")
    assert embedding.inputs[0] == "int32[5]"


def test_limits_count_what_comes_from_memory_and_costs_everything(engine: Engine, steps: list[StepProfile]) -> None:
    plan, operators = engine.compiled.step.plan, engine.compiled.operators
    sizes = {"T": 5, "S": 1, "R": 1}
    shape = StepShape(tuple(sizes.get(name, 1) for name in plan.symbols), ((5, 5),), is_decode=False)
    limits = MeasuredLimits(1e9, {str(dtype): 1e12 for dtype in DType})
    least = min_seconds(plan, operators, [shape], limits)
    assert sum(call.work.min_s(limits) or 0 for call in steps[0].calls) == least
    for call in steps[0].calls:
        assert call.work.memory_bytes <= call.cost.bytes_read
        assert call.work.flops == call.cost.flops


def test_totals_by_any_key_add_up(steps: list[StepProfile]) -> None:
    seconds = sum(step.seconds for step in steps)
    num_calls = sum(len(step.calls) for step in steps)
    for key in (lambda call: call.operator, lambda call: call.layer, lambda call: call.kernel):
        totals = total(steps, key).values()
        assert sum(len(one.calls) for one in totals) == num_calls
        assert sum(one.seconds for one in totals) == pytest.approx(seconds)
    assert total([], key=lambda call: call.operator) == {}
