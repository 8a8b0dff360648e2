"""Steps and operators are ranges of mstx."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from tests.range_log import RangeLog, ranges_of_an_answer

from aethermind import LLM, Runtime


def test_steps_and_operators_are_ranges_on_the_stream(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_CANN_GRAPHS", "0")
    log, streams, opened = RangeLog(), list[Any](), list[AbstractContextManager[None]]()
    start, end = torch.npu.mstx.range_start, torch.npu.mstx.range_end

    def range_start(message: str, stream: Any) -> int:
        streams.append(stream)
        opened.append(log.range(message))
        opened[-1].__enter__()
        return int(start(message, stream))

    def range_end(number: int) -> None:
        end(number)
        opened.pop().__exit__(None, None, None)

    monkeypatch.setattr(torch.npu.mstx, "range_start", range_start)
    monkeypatch.setattr(torch.npu.mstx, "range_end", range_end)
    options = {"dtype": "float32", "max_model_len": 32, "profiler_ranges": True}
    with LLM("demo", device="cann", runtime=runtime, **options) as llm:
        found = ranges_of_an_answer(llm, log)
        plan = llm.engine.compiled.step.plan
    operators = [f"{step.kernel.operator} {step.source}" for step in plan.steps]
    assert found == {"prefill": [operators], "decode": [operators, operators]}
    assert not opened
    assert all(isinstance(stream, torch.npu.Stream) for stream in streams)
