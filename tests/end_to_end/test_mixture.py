"""A mixture of experts: the same bits whatever else is in the batch, and the same answers on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.same_bits import GREEDY, PROMPTS, Opened, answers, answers_alone, answers_of_ranks, opening

from aethermind import Runtime
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


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    TransformersReference().write(ModelCase("mixture", "Qwen2MoeForCausalLM", CONFIG), path)
    return path


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def opened(request: pytest.FixtureRequest, runtime: Runtime, directory: Path) -> Iterator[Opened]:
    with opening(request.param, runtime, directory) as load:
        yield load


@pytest.fixture(scope="module")
def alone(opened: Opened) -> list[Any]:
    return answers_alone(opened)


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

    tokens, logprobs = answers_of_ranks(2, runtime, directory, quantization)
    expected_tokens, expected_logprobs = answers_of_ranks(1, runtime, directory, quantization)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-3 if quantization is None else 0.02)
