"""The operator by its kernel and by its decomposition, alone and in a model that transformers also has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from aethermind import LLM, Runtime, SamplingParams
from aethermind.eager import Eager
from aethermind.errors import ConfigError

RUNTIME = Runtime.boot()
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [np.random.default_rng(length).integers(0, 97, length).tolist() for length in (21, 1, 8)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2 with gelu for silu, under the name of this package's architecture."""
    folder = tmp_path_factory.mktemp("geglu")
    torch.manual_seed(1)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = transformers.Qwen2Config(**sizes, **heads, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False)
    model = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=float(name.endswith("norm.weight")), std=1.3 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"architectures": ["GegluForCausalLM"]}))
    demo = RUNTIME.models.locate("demo")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder)
    return folder


def continued(checkpoint: Path, prompt: list[int]) -> list[int]:
    """Transformers' greedy answer, in float64."""
    model = transformers.Qwen2ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).double()
    token_ids = list(prompt)
    for _ in range(PARAMS.max_tokens):
        with torch.no_grad():
            token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_model_agrees_with_transformers(checkpoint: Path, device: str) -> None:
    options = {"max_num_batched_tokens": 12, "max_num_seqs": 2, "fallback": "error"}
    with LLM(checkpoint, device=device, dtype="float32", runtime=RUNTIME, **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == [continued(checkpoint, one) for one in PROMPTS]


def aethermind(*arguments: str) -> dict[str, object]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "aethermind", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("device", "steps"), [("numpy", ["geglu"]), ("cpu", ["geglu/gelu", "geglu/mul"])])
def test_a_device_without_a_kernel_decomposes_it(checkpoint: Path, device: str, steps: list[str]) -> None:
    sections = aethermind("explain", "--device", device, "--model", str(checkpoint))["sections"]
    paths = {step["path"] for section in sections for step in section["steps"]}
    assert sorted(path for path in paths if path.startswith("geglu")) == steps


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_single_calls_agree_with_torch(device: str) -> None:
    gate, up = (torch.randn(5, 33, generator=torch.Generator().manual_seed(seed)) * 2 for seed in (1, 2))
    expected = torch.nn.functional.gelu(gate.double(), approximate="tanh") * up.double()
    torch.testing.assert_close(Eager(device=device).geglu(gate, up).double(), expected, rtol=1e-5, atol=1e-6)


def test_another_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match="gelu_pytorch_tanh"):
        RUNTIME.architectures.get("GegluForCausalLM").create({"hidden_act": "silu"})
