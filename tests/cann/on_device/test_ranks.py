"""Tensor parallelism on two NPUs by HCCL."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401

from aethermind import LLM, Runtime, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
MASKED = SamplingParams(temperature=0.0, max_tokens=2, allowed_token_ids=[11, 13])


@pytest.mark.skipif(torch.npu.device_count() < 2, reason="a rank each needs two NPUs")
def test_two_ranks_give_the_answers_of_one(runtime: Runtime) -> None:
    def answers(size: int, *several: SamplingParams) -> list[list[int]]:
        options = {"dtype": "float32", "max_model_len": 64, "max_num_batched_tokens": 32, "max_num_seqs": 2}
        with LLM("demo", device="cann:0", tensor_parallel_size=size, runtime=runtime, **options) as llm:
            return [llm.generate("Once upon a time", params)[0].outputs[0].token_ids for params in several]

    expected = answers(1, GREEDY, MASKED)
    assert answers(2, GREEDY, MASKED) == expected
    assert answers(2, GREEDY) == expected[:1]  # other ranks, after the first have ended
