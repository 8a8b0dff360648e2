"""Context shift: answers and conversations go on beyond the context, by dropping the oldest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen2.modeling_qwen2 import rotate_half

import aethermind_deepseek.conformance
import aethermind_gpt2.conformance
import aethermind_mamba.conformance
import aethermind_qwen2.conformance
from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import Checkpoints, random_prompts
from aethermind.testing.families.transformers_reference import pretrained

CONTEXT, BLOCK, NUM_KEPT, NUM_DROPPED = 24, 4, 4, 8
NUM_TOKENS = 60
OPTIONS: dict[str, Any] = {
    "context_shift": True, "max_model_len": CONTEXT, "block_size": BLOCK, "num_keep": 3, "dtype": "float32",
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
CASES = {
    case.name: case
    for package in (aethermind_deepseek, aethermind_gpt2, aethermind_mamba, aethermind_qwen2)
    for case in package.conformance.CASES
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp)


class Reference:
    """Transformers in float64, with a cache of keys that are rotated from scratch for their places in every step."""

    def __init__(self, case: ModelCase, directory: Path) -> None:
        self.model = pretrained(case.architecture, directory, torch.float32, torch.float64, None)
        self.has_rotary = case.architecture.startswith("Qwen2")
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """The greedy answer: keys and values are dropped whenever the cache is full and another token is read."""
        text, self.keys, self.values = list(prompt), [], []
        for index in range(len(prompt) + NUM_TOKENS - 1):
            if self.keys and self.keys[0].shape[2] == CONTEXT:
                kept = [*range(NUM_KEPT), *range(NUM_KEPT + NUM_DROPPED, CONTEXT)]
                self.keys = [keys[:, :, kept] for keys in self.keys]
                self.values = [values[:, :, kept] for values in self.values]
            logits = self.read(text[index])
            if index >= len(prompt) - 1:
                text.append(int(logits.argmax()))
        return text[len(prompt) :]

    def read(self, token_id: int) -> torch.Tensor:
        """Compute one token behind the cached ones; its logits."""
        raw: list[torch.Tensor] = []
        hooks = []
        if self.has_rotary:
            hooks = [
                layer.self_attn.k_proj.register_forward_hook(lambda _, __, output: raw.append(output))
                for layer in self.model.model.layers
            ]
        num_cached = self.keys[0].shape[2] if self.keys else 0
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            cache.update(self.rotated(keys), values, layer)
        more = {"position_ids": torch.tensor([[num_cached]])} if self.has_rotary else {}
        with torch.no_grad():
            output = self.model(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True, **more)
        for hook in hooks:
            hook.remove()
        self.values = [layer.values for layer in output.past_key_values.layers]
        if self.has_rotary:
            new = [key.reshape(1, 1, self.values[0].shape[1], -1).transpose(1, 2) for key in raw]
            self.keys = [torch.cat(pair, 2) for pair in zip(self.keys, new, strict=True)] if self.keys else new
        else:
            self.keys = [layer.keys for layer in output.past_key_values.layers]
        return output.logits[0, -1]

    def rotated(self, keys: torch.Tensor) -> torch.Tensor:
        """The cached keys for the positions 0, 1, …"""
        if not self.has_rotary:
            return keys
        positions = torch.arange(keys.shape[2])[None]
        cos, sin = self.model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float64), positions)
        return keys * cos[:, None] + rotate_half(keys) * sin[:, None]


@pytest.mark.parametrize("name", ["head_dim_80", "yarn_old_spelling", "sliding_by_layer_types", "bloom"])
def test_answers_are_those_of_keys_computed_for_their_new_positions(
    runtime: Runtime, device: str, checkpoints: Checkpoints, name: str
) -> None:
    directory = checkpoints.directory(CASES[name])
    (prompt,) = random_prompts(11)
    expected = Reference(CASES[name], directory).answer(prompt)
    with LLM(directory, device=device, runtime=runtime, **OPTIONS) as llm:
        (output,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
    assert output.outputs[0].token_ids == expected
    assert output.outputs[0].finish_reason == "length"


PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(3 + 4 * index)] for index in range(5)]


def answers_of(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams = GREEDY) -> list[list[list[int]]]:
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def alone(runtime: Runtime) -> list[list[list[int]]]:
    """The answer to each prompt in an engine that computes nothing else."""
    with LLM("demo", device="cpu", runtime=runtime, **OPTIONS) as llm:
        return [answers_of(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 6},
        {"num_kv_blocks": 13, "swap_space": 0.01},
        {"num_kv_blocks": 13, "enable_prefix_caching": False, "max_num_seqs": 3, "max_num_batched_tokens": 5},
        {"speculative_method": "prompt_lookup", "num_speculative_tokens": 5},
        {"speculative_method": "draft", "draft_model": "demo"},
    ],
    ids=["batch", "one_context", "swapped", "recomputed_in_chunks", "prompt_lookup", "draft_model"],
)
def test_pressure_changes_no_answer(runtime: Runtime, alone: list[list[list[int]]], options: dict[str, Any]) -> None:
    with LLM("demo", device="cpu", runtime=runtime, **OPTIONS, **options) as llm:
        for _ in range(2):  # the second time with prefixes in the cache
            assert answers_of(llm, PROMPTS) == alone
        if options.get("num_kv_blocks"):
            assert llm.engine.num_preemptions > 0
        stats = EngineStats.of(llm.engine)
        assert stats.num_free_blocks == stats.num_blocks
        if "swap_space" in options:
            assert stats.swapped_out_bytes == stats.swapped_in_bytes > 0


def test_answers_to_one_prompt_drop_tokens_each_for_itself(runtime: Runtime, alone: list[list[list[int]]]) -> None:
    params = SamplingParams(n=3, temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM("demo", device="cpu", runtime=runtime, max_num_seqs=2, max_num_batched_tokens=8, **OPTIONS) as llm:
        assert answers_of(llm, [PROMPTS[3]], params) == [alone[3] * 3]


def test_long_prompts_lose_the_tokens_behind_their_beginning(runtime: Runtime) -> None:
    long, params = list(range(5, 5 + 100)), SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    with LLM("demo", device="cpu", runtime=runtime, **OPTIONS) as llm:
        (output,) = llm.generate({"prompt_token_ids": long}, params)
        assert len(output.prompt_token_ids) < CONTEXT
        assert output.prompt_token_ids == long[:NUM_KEPT] + long[NUM_KEPT - len(output.prompt_token_ids) :]
        short = {"prompt_token_ids": output.prompt_token_ids}
        assert llm.generate(short, params)[0].outputs[0].token_ids == output.outputs[0].token_ids
        # the next turn begins alike
        (more,) = llm.generate({"prompt_token_ids": [*long, 7]}, params)
        assert more.num_cached_tokens >= len(output.prompt_token_ids) // BLOCK * BLOCK - BLOCK, (
            "the next turn is reused"
        )


def test_without_a_limit_an_answer_has_as_many_tokens_as_the_context(runtime: Runtime) -> None:
    with LLM("demo", device="cpu", runtime=runtime, **OPTIONS) as llm:
        unlimited = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        assert len(answers_of(llm, [PROMPTS[0]], unlimited)[0][0]) == CONTEXT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gelu_new", "positions are computed by position_embedding"),
        ("mamba2", "recurrent layers keep one state of all tokens"),
        ("falcon_h1", "recurrent layers keep one state of all tokens"),
        ("deepseek_v3", "latent vectors cannot be rotated"),
    ],
)
def test_models_whose_keys_cannot_move_are_refused(
    runtime: Runtime, checkpoints: Checkpoints, name: str, reason: str
) -> None:
    directory = checkpoints.directory(CASES[name])
    with pytest.raises(InvalidArgumentError, match=rf"{reason}.*Leave context_shift out\."):
        LLM(directory, device="cpu", runtime=runtime, load_format="dummy", **OPTIONS)


def test_a_context_without_blocks_to_drop_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot keep its first 20 tokens and drop others"):
        LLM("demo", device="cpu", runtime=runtime, **{**OPTIONS, "num_keep": 20})


def test_a_layout_with_the_whole_context_in_a_block_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgumentError, match="Choose kv_cache_layout paged or cell"):
        LLM("demo", device="cpu", runtime=runtime, **{**OPTIONS, "kv_cache_layout": "static"})


def test_log_probabilities_need_the_whole_prompt(runtime: Runtime) -> None:
    with LLM("demo", device="cpu", runtime=runtime, **OPTIONS) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=1)
        with pytest.raises(ContextLengthError, match="Prompt log probabilities need all of it"):
            llm.generate({"prompt_token_ids": list(range(5, 5 + CONTEXT))}, params)
        (output,) = llm.generate({"prompt_token_ids": list(range(5, 5 + CONTEXT - 1))}, params)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == CONTEXT - 1
