"""The router alone, and models with it, compared with transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from aethermind import LLM, Runtime, SamplingParams
from aethermind.eager import Eager
from aethermind.errors import ConfigError

RUNTIME = Runtime.boot()
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [np.random.default_rng(length).integers(0, 97, length).tolist() for length in (21, 1, 8)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.5, 2.0, 3.0, 4.0],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
}
VARIATIONS: dict[str, dict[str, Any]] = {
    "as_published": {"attention_bias": True, "lm_head_bias": True, "rope_parameters": LONGROPE},
    "plain": {"router_jitter_noise": 0.3, "num_local_experts": 4},
}


@pytest.fixture(scope="module", params=VARIATIONS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights for which experts, biases and norms matter."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    torch.manual_seed(3)
    config = transformers.PhimoeConfig(**{**sizes, **heads, "num_local_experts": 8, **VARIATIONS[request.param]})
    model = transformers.PhimoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = float("norm" in name and name.endswith("weight"))
            parameter.normal_(mean=mean, std=1.3 * parameter.shape[-1] ** -0.5)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    demo = RUNTIME.models.locate("demo")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder)
    return folder


def continued(checkpoint: Path, prompt: list[int]) -> list[tuple[int, float]]:
    """Transformers' greedy tokens and their log probabilities, in float64."""
    model = transformers.PhimoeForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float64, experts_implementation="eager"
    )
    answer: list[tuple[int, float]] = []
    for _ in range(PARAMS.max_tokens):
        tokens = torch.tensor([[*prompt, *(token for token, _ in answer)]])
        with torch.no_grad():
            logprobs = model(tokens, use_cache=False).logits[0, -1].log_softmax(-1)
        answer.append((int(logprobs.argmax()), float(logprobs.max())))
    return answer


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_models_agree_with_transformers(checkpoint: Path, device: str) -> None:
    # transformers rotates by the short factors at every length, so the context is as long as they are for.
    sizes = {"max_num_batched_tokens": 12, "max_model_len": LONGROPE["original_max_position_embeddings"]}
    with LLM(checkpoint, device=device, dtype="float32", runtime=RUNTIME, **sizes) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        tokens, logprobs = zip(*continued(checkpoint, prompt), strict=True)
        answer = output.outputs[0]
        assert answer.token_ids == list(tokens)
        ours = [one[token].logprob for token, one in zip(answer.token_ids, answer.logprobs, strict=True)]
        np.testing.assert_allclose(ours, logprobs, atol=2e-5)


@pytest.mark.parametrize("jitter", [0.01, 0.3])
def test_the_router_agrees_with_transformers(jitter: float) -> None:
    logits = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    weights, ids = sparsemixer(logits.double(), jitter, training=False)
    our_ids, our_weights = Eager(device="numpy").sparse_mixer(logits, jitter=jitter)
    assert our_ids.tolist() == ids.tolist()
    torch.testing.assert_close(our_weights.double(), weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_local_experts": 1}, "num_local_experts in config.json should be an integer of 2 or more, got 1"),
        ({"rope_parameters": {**LONGROPE, "long_mscale": 1.3}}, "short_mscale and long_mscale of rope_parameters"),
    ],
)
def test_what_is_not_supported_is_refused(checkpoint: Path, fields: dict[str, Any], message: str) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    with pytest.raises(ConfigError, match=message):
        RUNTIME.architectures.get("PhimoeForCausalLM").create({**config, **fields})
