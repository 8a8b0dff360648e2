"""The offline API: what it generates is reproducible, and what transformers generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from aethermind import LLM, Runtime, SamplingParams

PROMPTS = ["Once upon a time", "The old fox", "By the sea there lived"]


@pytest.fixture(scope="module")
def reference(runtime: Runtime) -> Any:
    path = Path(runtime.models.locate("demo"))
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def test_greedy_answers_are_those_of_transformers(demo: LLM, reference: Any) -> None:
    results = demo.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True))
    for result in results:
        ids = torch.tensor([result.prompt_token_ids])
        expected = reference.generate(ids, do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0)
        assert result.outputs[0].token_ids == expected[0, ids.shape[1] :].tolist()


def test_a_seed_repeats_an_answer_in_any_batch(demo: LLM) -> None:
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=21, max_tokens=24)
    (alone,) = demo.generate(PROMPTS[0], params)
    (again,) = demo.generate(PROMPTS[0], params)
    beside = demo.generate(PROMPTS, [params, SamplingParams(max_tokens=9), SamplingParams(temperature=0.0)])
    assert alone.outputs[0].token_ids == again.outputs[0].token_ids == beside[0].outputs[0].token_ids
    (other,) = demo.generate(PROMPTS[0], SamplingParams(temperature=1.2, top_p=0.95, seed=22, max_tokens=24))
    assert other.outputs[0].token_ids != alone.outputs[0].token_ids
