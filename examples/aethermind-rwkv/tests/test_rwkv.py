"""A model compared with transformers: ragged batches, small chunks, and several answers of one prompt."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from aethermind import LLM, Runtime, SamplingParams

RUNTIME = Runtime.boot()
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
SAMPLED = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [np.random.default_rng(length).integers(0, 97, length).tolist() for length in (21, 1, 8)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights for which time and channels matter."""
    torch.manual_seed(3)
    sizes = {"vocab_size": 97, "hidden_size": 32, "attention_hidden_size": 24, "num_hidden_layers": 3}
    model = transformers.RwkvForCausalLM(transformers.RwkvConfig(**sizes, rescale_every=0, use_cache=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "time_mix" in name:
                parameter.uniform_()
            elif "time_" in name or "ln" in name:
                parameter.normal_(mean=float(name.endswith("weight")), std=0.5)
            else:
                parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)
    folder = tmp_path_factory.mktemp("rwkv")
    model.save_pretrained(folder)
    demo = RUNTIME.models.locate("demo")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder)
    return folder


def logprobs_of(checkpoint: Path, tokens: list[int]) -> np.ndarray:
    """Transformers' log probabilities of the token after each one, in float64 [T, vocab_size]."""
    model = transformers.RwkvForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "three_answers"])
def test_answers_agree_with_transformers(checkpoint: Path, device: str, params: SamplingParams) -> None:
    with LLM(checkpoint, device=device, dtype="float32", runtime=RUNTIME, max_num_batched_tokens=6) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len({tuple(answer.token_ids) for answer in output.outputs}) == params.n
        for answer in output.outputs:
            rows = logprobs_of(checkpoint, [*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
            if params is GREEDY:
                assert answer.token_ids == rows.argmax(axis=1).tolist()
            ours = [one[token].logprob for token, one in zip(answer.token_ids, answer.logprobs, strict=True)]
            np.testing.assert_allclose(ours, rows[np.arange(len(rows)), answer.token_ids], atol=2e-5)
