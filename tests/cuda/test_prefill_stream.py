"""Prefill on a second stream of an emulated GPU, whose streams run late and in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cuda.emulator.opening import emulated_cuda
from tests.sim.small_model import write_small_model

from aethermind import LLM, Runtime, SamplingParams

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(3 + 5 * index)] for index in range(4)]


@pytest.fixture(scope="module")
def model(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers with random weights."""
    folder = tmp_path_factory.mktemp("small") / "model"
    return str(write_small_model(Path(runtime.models.locate("demo")), folder))


def answers(model: str, device: str, **options: Any) -> tuple[list[list[int]], int]:
    """Tokens of prompts in chunks of 8 tokens, and the number of executors on the second stream."""
    sizes = {"max_model_len": 64, "max_num_batched_tokens": 8, "max_num_seqs": 4}
    params = [
        SamplingParams(temperature=0.8 * (number % 2), seed=number, max_tokens=5 + number, ignore_eos=True)
        for number in range(len(PROMPTS))
    ]
    with LLM(model, device=device, dtype="float32", runtime=Runtime.boot(), **sizes, **options) as llm:
        prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        on_second = [key for key in llm.engine.runner._loaded_graphs if key[2]]
    return found, len(on_second)


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_those_of_one_stream(model: str, seed: int, tmp_path: Path) -> None:
    expected, _ = answers(model, "numpy")
    with emulated_cuda(tmp_path, seed) as driver:
        found, num_executors = answers(model, "cuda", prefill_stream=True, deterministic=True)
        assert driver.calls["graph_launch"] > 0, "decodes beside prefill are replayed as graphs"
    assert (found, num_executors) == (expected, 1)
