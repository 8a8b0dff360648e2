"""The demo model on the NPU generates the CPU's tokens."""

from __future__ import annotations

from contextlib import closing

import pytest

from aethermind import LLM, Runtime, SamplingParams

PROMPTS = ["Once upon a time", "The little fox"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


def answers(runtime: Runtime, device: str, **options: object) -> list[list[int]]:
    with closing(LLM("demo", device=device, max_model_len=128, runtime=runtime, **options)) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(("dtype", "block_size"), [("float32", 16), ("bfloat16", 128)])
def test_greedy_tokens_are_those_of_the_cpu(runtime: Runtime, dtype: str, block_size: int) -> None:
    options = {"dtype": dtype, "fallback": "error"}
    expected = answers(runtime, "cpu", **options)
    assert answers(runtime, "cann", block_size=block_size, **options) == expected


def test_weights_in_fp8_keep_their_values(runtime: Runtime) -> None:
    options = {"dtype": "float32", "quantization": "fp8"}
    assert answers(runtime, "cann", fallback="error", **options) == answers(runtime, "numpy", **options)
