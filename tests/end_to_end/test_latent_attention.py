"""A model of latent attention: the same bits whatever else is in the batch, on several ranks, and as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.same_bits import GREEDY, PROMPTS, Opened, answers, answers_alone, answers_of_ranks, opening

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.kv_offload import fingerprint
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

CONFIG = {
    **SMALL,
    "vocab_size": 4096,
    "hidden_size": 64,
    "num_key_value_heads": 4,
    "pad_token_id": None,
    "kv_lora_rank": 48,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latent")
    TransformersReference().write(ModelCase("latent", "DeepseekV3ForCausalLM", CONFIG), path)
    return path


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def opened(request: pytest.FixtureRequest, runtime: Runtime, directory: Path) -> Iterator[Opened]:
    with opening(request.param, runtime, directory) as load:
        yield load


@pytest.fixture(scope="module")
def alone(opened: Opened) -> list[Any]:
    return answers_alone(opened)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_seqs": 3, "max_num_batched_tokens": 4}],
    ids=["batch", "chunks"],
)
def test_answers_have_the_same_bits_in_any_step(opened: Opened, alone: list[Any], options: dict[str, Any]) -> None:
    assert answers(opened(enable_prefix_caching=False, **options), PROMPTS) == alone


def test_answers_have_the_same_bits_after_prefix_cache_hits_and_forks(opened: Opened, alone: list[Any]) -> None:
    llm = opened(block_size=4)
    answers(llm, PROMPTS[2])
    (again,) = llm.generate(
        PROMPTS[2], SamplingParams(temperature=0.0, max_tokens=16, logprobs=3, n=2, ignore_eos=True)
    )
    assert again.num_cached_tokens >= 28
    assert [(one.token_ids, one.logprobs) for one in again.outputs] == [alone[2]] * 2


@pytest.mark.parametrize("swap_space", [0, 0.01])
def test_answers_have_the_same_bits_after_preemption(opened: Opened, alone: list[Any], swap_space: float) -> None:
    llm = opened(enable_prefix_caching=False, block_size=4, num_kv_blocks=14, max_model_len=56, swap_space=swap_space)
    assert answers(llm, PROMPTS) == alone
    assert llm.engine.num_preemptions > 0


def test_saved_sequences_are_resumed(opened: Opened, alone: list[Any]) -> None:
    llm = opened(block_size=4)
    tokens = PROMPTS[2]["prompt_token_ids"]
    engine = llm.engine
    engine.add_request("r", tokens, GREEDY)
    while not engine.running or not engine.running[0].output_token_ids:
        engine.step()
    saved = engine.cache.save("r", contents_of(llm), tokens)
    assert saved.outcome is CacheOutcome.OK
    engine.abort("r")
    other = opened(block_size=4)
    assert other.engine.cache.load("s", saved.data, contents_of(other), tokens).num_cached_tokens == len(tokens)
    assert other.engine.cache.release("s", tokens) is CacheOutcome.OK
    (again,) = other.generate(PROMPTS[2], GREEDY)
    assert again.num_cached_tokens >= 32
    assert (again.outputs[0].token_ids, again.outputs[0].logprobs) == alone[2]


def test_another_engine_reads_latent_vectors_from_a_store(
    opened: Opened, alone: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aethermind.engine.kv_offload.offload.FetchCosts.is_worth_fetching", lambda *_: True)
    first, second = (opened(block_size=4, kv_store=f"disk:{tmp_path / 'kv'}") for _ in range(2))
    first.generate(PROMPTS[2], GREEDY)
    assert first.engine.kv_offload is not None
    assert first.engine.kv_offload.flush(60)
    (again,) = second.generate(PROMPTS[2], GREEDY)
    assert again.num_cached_tokens >= 32
    assert (again.outputs[0].token_ids, again.outputs[0].logprobs) == alone[2]


def contents_of(llm: LLM) -> MemoryContents:
    return MemoryContents(llm.engine.runner.kv_memory, fingerprint(llm.engine.compiled))


@pytest.mark.parametrize(("quantization", "num_tokens", "tolerance"), [(None, 16, 1e-3), ("int8", 1, 0.05)])
def test_several_ranks_answer_as_one(
    runtime: Runtime, directory: Path, quantization: str | None, num_tokens: int, tolerance: float
) -> None:
    """Each has some of the heads, whose projections are parts of stacks, and all latent vectors."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=3, ignore_eos=True)

    tokens, logprobs = answers_of_ranks(2, runtime, directory, quantization, params)
    expected_tokens, expected_logprobs = answers_of_ranks(1, runtime, directory, quantization, params)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=tolerance)
