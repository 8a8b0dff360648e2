"""GPT-2 against transformers: every row of logits, greedy tokens in ragged batches, and both ways of naming tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.qwen2.checkpoints import DEMO, VOCAB_SIZE, logits_of, reference_model
from tests.qwen2.generation import generate
from tests.qwen2.parity import assert_close_to, assert_matches, random_prompts

from aethermind import LLM, Runtime
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind_gpt2.architecture import GPT2

_SHAPE = {"vocab_size": VOCAB_SIZE, "n_positions": 96, "n_embd": 48, "n_layer": 2, "n_head": 4, "eos_token_id": 2}
VARIANTS = {"gelu_new": {}, "gelu_wide": {"activation_function": "gelu", "n_inner": 70}}


@pytest.fixture(scope="module", params=VARIANTS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers writes it."""
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**_SHAPE, **VARIANTS[request.param]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, path / name)
    return path


def test_logits_of_every_position(device: str, runtime: Runtime, directory: Path) -> None:
    (text,) = random_prompts(40)
    with LLM(directory, device=device, max_num_batched_tokens=1024, runtime=runtime) as llm:
        generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    assert_close_to(logits_of(reference_model(directory), text), [one.logits[0] for one in generated])


def test_ragged_batches(device: str, runtime: Runtime, directory: Path) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "block_size": 4}
    with LLM(directory, device=device, runtime=runtime, **options) as llm:
        generated, _ = generate(llm, random_prompts(1, 41, 5, 23), max_tokens=32, stagger=3)
    for one in generated:
        assert_matches(one, reference_model(directory))


def test_names_without_the_models_prefix(runtime: Runtime, directory: Path, tmp_path: Path) -> None:
    """As OpenAI's own checkpoints have them, buffers included."""
    copied = Path(shutil.copytree(directory, tmp_path / "copied"))
    tensors = load_file(copied / "model.safetensors")
    renamed = {name.removeprefix("transformer."): values for name, values in tensors.items()}
    renamed |= {f"h.{layer}.attn.bias": np.ones((1, 1, 8, 8), np.uint8) for layer in range(2)}
    save_file(renamed, copied / "model.safetensors")
    answers = []
    for path in (directory, copied):
        with LLM(path, device="cpu", runtime=runtime) as llm:
            answers.append(generate(llm, random_prompts(9), max_tokens=8)[0][0].token_ids)
    assert answers[0] == answers[1]


def test_positions_end_with_the_table(runtime: Runtime, directory: Path) -> None:
    with LLM(directory, device="numpy", runtime=runtime) as llm:
        assert llm.info.max_model_len == _SHAPE["n_positions"]
    with pytest.raises(InvalidArgumentError, match="the 96 positions that the model is made for"):
        LLM(directory, device="numpy", max_model_len=97, runtime=runtime)


def test_what_is_not_computed_is_named() -> None:
    with pytest.raises(ConfigError, match="add_cross_attention"):
        GPT2.create({"add_cross_attention": True})
    with pytest.raises(ConfigError, match="activation_function 'relu'"):
        GPT2.create({"activation_function": "relu"})
