"""A mixture of experts: the same bits whatever else is in the batch, and the same answers on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

CONFIG = {
    **SMALL,
    "vocab_size": 4096,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
PROMPTS: Any = [{"prompt_token_ids": [7 * n + 3 * i for i in range(n)]} for n in (21, 5, 33, 1, 12)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, logprobs=3, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    TransformersReference().write(ModelCase("mixture", "Qwen2MoeForCausalLM", CONFIG), path)
    return path


Opened = Callable[..., LLM]


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def opened(request: pytest.FixtureRequest, runtime: Runtime, directory: Path) -> Iterator[Opened]:
    """Opens the model on a device; what is open at the end is closed."""
    llms: list[LLM] = []

    def load(**options: Any) -> LLM:
        given = {"device": request.param, "dtype": "float32", "tokenizer": "demo", "fallback": "allow"}
        llms.append(LLM(directory, runtime=runtime, deterministic=True, num_threads=1, **{**given, **options}))
        return llms[-1]

    yield load
    for llm in llms:
        llm.close()


def answers(llm: LLM, prompts: Any) -> list[Any]:
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in llm.generate(prompts, GREEDY)]


@pytest.fixture(scope="module")
def alone(opened: Opened) -> list[Any]:
    llm = opened(enable_prefix_caching=False)
    return [answers(llm, prompt)[0] for prompt in PROMPTS]


def test_answers_have_the_same_bits_in_any_batch(opened: Opened, alone: list[Any]) -> None:
    assert answers(opened(enable_prefix_caching=False), PROMPTS) == alone


def test_answers_have_the_same_bits_with_chunked_prefill(opened: Opened, alone: list[Any]) -> None:
    assert answers(opened(enable_prefix_caching=False, max_num_seqs=3, max_num_batched_tokens=4), PROMPTS) == alone


def test_answers_have_the_same_bits_after_prefix_cache_hits(opened: Opened, alone: list[Any]) -> None:
    llm = opened(block_size=4)
    answers(llm, PROMPTS[2])
    (again,) = llm.generate(PROMPTS[2], GREEDY)
    assert again.num_cached_tokens >= 28
    assert (again.outputs[0].token_ids, again.outputs[0].logprobs) == alone[2]


def test_answers_have_the_same_bits_after_preemption(opened: Opened, alone: list[Any]) -> None:
    llm = opened(enable_prefix_caching=False, block_size=4, num_kv_blocks=14, max_model_len=56)
    assert answers(llm, PROMPTS) == alone
    assert llm.engine.num_preemptions > 0


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_several_ranks_answer_as_one(runtime: Runtime, directory: Path, quantization: str | None) -> None:
    """Each has a part of every expert, quantised or not, and the router and the shared expert's gate are whole."""

    def found(size: int) -> tuple[list[list[int]], list[float]]:
        options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_threads": 1, "fallback": "allow"}
        options |= {"tokenizer": "demo", "quantization": quantization, "runtime": runtime}
        with LLM(directory, tensor_parallel_size=size, **options) as llm:
            outputs = [one.outputs[0] for one in llm.generate(PROMPTS, GREEDY)]
        logprobs = [one.logprob for output in outputs for step in output.logprobs or () for one in step.values()]
        return [one.token_ids for one in outputs], logprobs

    (tokens, logprobs), (expected_tokens, expected_logprobs) = found(2), found(1)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-3 if quantization is None else 0.02)
