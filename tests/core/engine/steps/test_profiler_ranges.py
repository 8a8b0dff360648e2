"""Steps and operators are ranges of the profiler: ITT tasks, where the host computes or has no other profiler."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from tests.range_log import RangeLog, ranges_of_an_answer

from aethermind import LLM, Runtime
from aethermind.errors import DeviceError


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RangeLog:
    """What a collector of ITT sees."""
    log = RangeLog()
    monkeypatch.setitem(sys.modules, "ittapi", SimpleNamespace(domain=str, nested_task=log.range))
    return log


@pytest.mark.parametrize("name", ["numpy", "cpu", "sim"])
def test_steps_and_operators_are_ranges_in_order(runtime: Runtime, log: RangeLog, name: str) -> None:
    with LLM(
        "demo", device=name, dtype="float32", max_model_len=32, runtime=runtime, fallback="allow", profiler_ranges=True
    ) as llm:
        found = ranges_of_an_answer(llm, log)
        plan = llm.engine.compiled.step.plan
    operators = [f"{step.kernel.operator} {step.source}" for step in plan.steps]
    assert found == {"prefill": [operators], "decode": [operators, operators]}
    assert {"embedding", "paged_attention", "sample_tokens"} <= {name.partition(" ")[0] for name in operators}


def test_nothing_is_a_range_by_default(runtime: Runtime, log: RangeLog) -> None:
    with LLM("demo", device="numpy", dtype="float32", max_model_len=32, runtime=runtime) as llm:
        assert ranges_of_an_answer(llm, log) == {}


def test_without_the_package_the_error_says_what_to_install(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ittapi", None)
    with pytest.raises(DeviceError, match="pip install ittapi"):
        LLM("demo", device="numpy", dtype="float32", max_model_len=32, runtime=runtime, profiler_ranges=True)
