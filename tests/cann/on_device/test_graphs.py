"""Captured decode steps generate the tokens of steps without graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401

from aethermind import LLM, Runtime, SamplingParams

if not hasattr(torch.npu, "NPUGraph"):
    pytest.skip("this torch_npu has no graphs", allow_module_level=True)

PROMPTS = ["Once upon a time", "The little fox", "Tom had a red ball. One day"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=9, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The numbers of graph captures, updates and launches."""
    counted: Counter[str] = Counter()
    for name in ("capture_end", "update", "replay"):
        real: Any = getattr(torch.npu.NPUGraph, name)

        def counting(self: Any, *args: Any, name: str = name, real: Any = real) -> Any:
            counted[name] += 1
            return real(self, *args)

        monkeypatch.setattr(torch.npu.NPUGraph, name, counting)
    return counted


def answers(runtime: Runtime, *several: Any, **options: Any) -> list[list[list[int]]]:
    given = {"max_model_len": 128, "max_num_seqs": 8, "fallback": "error", "dtype": "float32", **options}
    with LLM("demo", device="cann", runtime=runtime, **given) as llm:
        return [[one.outputs[0].token_ids for one in llm.generate(PROMPTS, params)] for params in several]


@pytest.mark.parametrize(("dtype", "block_size"), [("float32", 16), ("bfloat16", 128)])
def test_tokens_are_those_of_steps_without_graphs(
    runtime: Runtime, graphs: Counter[str], monkeypatch: pytest.MonkeyPatch, dtype: str, block_size: int
) -> None:
    """Batches of three padded to four; one request ends before the others; each has its own seed."""
    several = ([GREEDY, SHORT, SEEDED], GREEDY)
    options = {"dtype": dtype, "block_size": block_size}
    found = answers(runtime, *several, **options)
    assert 0 < graphs["capture_end"] < graphs["replay"]
    assert graphs["update"] == (graphs["replay"] if block_size == 128 else 0)
    graphs.clear()
    monkeypatch.setenv("AETHERMIND_CANN_GRAPHS", "0")
    assert found == answers(runtime, *several, **options)
    assert not graphs


def test_steps_run_without_graphs_where_capture_fails(
    runtime: Runtime, graphs: Counter[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("stream resources are insufficient (error code is 207008)\nand more")

    expected = answers(runtime, GREEDY)
    graphs.clear()
    monkeypatch.setattr(torch.npu.NPUGraph, "capture_begin", fail)
    assert answers(runtime, GREEDY) == expected
    assert not graphs["replay"]
    messages = [record.getMessage() for record in caplog.records if "without graphs" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].endswith("stream resources are insufficient (error code is 207008)")
