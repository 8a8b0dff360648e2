"""The same request yields the same tokens and the same bits of log probabilities, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aethermind import LLM, SamplingParams

PROMPTS = [
    "Once upon a time",
    "The old fox",
    "A",
    "By the sea there lived a crab who wanted to see the mountains, and one day",
    "The",
    "A little boy had a red kite. He",
]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, logprobs=5),
    SamplingParams(temperature=1.0, seed=3, max_tokens=12, logprobs=5),
    SamplingParams(temperature=1.3, seed=4, top_k=20, top_p=0.9, max_tokens=9, logprobs=2, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, seed=5, min_p=0.02, max_tokens=12, logprobs=5, presence_penalty=0.5),
    SamplingParams(temperature=1.0, seed=6, max_tokens=5, logprobs=0, logit_bias={300: 2.0}),
    SamplingParams(temperature=0.9, seed=7, max_tokens=12, logprobs=3, prompt_logprobs=2),
]


@pytest.fixture(scope="module")
def open_deterministic(open_demo: Callable[..., LLM]) -> Callable[..., LLM]:
    """Nothing is kept between requests, so that each is computed."""

    def load(**options: Any) -> LLM:
        return open_demo(deterministic=True, enable_prefix_caching=False, **options)

    return load


def answers(llm: LLM, indices: list[int]) -> dict[int, Any]:
    results = llm.generate([PROMPTS[i] for i in indices], [PARAMS[i] for i in indices])
    return {
        index: (result.outputs[0].token_ids, result.outputs[0].logprobs, result.prompt_logprobs)
        for index, result in zip(indices, results, strict=True)
    }


@pytest.fixture(scope="module")
def alone(open_deterministic: Callable[..., LLM]) -> dict[int, Any]:
    llm = open_deterministic()
    return {index: answers(llm, [index])[index] for index in range(len(PROMPTS))}


@pytest.mark.parametrize("indices", [[0, 1], [2, 0, 4], [5, 4, 3, 2, 1, 0], [3, 5]], ids=str)
def test_outputs_do_not_depend_on_the_batch(
    open_deterministic: Callable[..., LLM], alone: dict[int, Any], indices: list[int]
) -> None:
    found = answers(open_deterministic(), indices)
    assert found == {index: alone[index] for index in indices}


def test_outputs_do_not_depend_on_chunked_prefill(
    open_deterministic: Callable[..., LLM], alone: dict[int, Any]
) -> None:
    llm = open_deterministic(max_num_seqs=3, max_num_batched_tokens=4)
    assert answers(llm, list(range(len(PROMPTS)))) == alone


def test_outputs_do_not_depend_on_prefix_cache_hits(open_demo: Callable[..., LLM], alone: dict[int, Any]) -> None:
    llm = open_demo(deterministic=True, block_size=4)
    answers(llm, [3])
    again = answers(llm, [0, 3])
    assert again == {index: alone[index] for index in (0, 3)}


def test_parallel_samples_equal_requests_with_their_seeds(open_deterministic: Callable[..., LLM]) -> None:
    llm = open_deterministic()
    params = {"temperature": 1.0, "max_tokens": 12, "logprobs": 3}
    (several,) = llm.generate(PROMPTS[3], SamplingParams(n=3, seed=11, **params))
    (first,) = llm.generate(PROMPTS[3], SamplingParams(seed=11, **params))
    assert several.outputs[0] == first.outputs[0]
    assert len({tuple(output.token_ids) for output in several.outputs}) == 3
