"""GPT-2 beside what the conformance kit compares with transformers: both ways of naming tensors, positions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aethermind import LLM, Runtime
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.testing.families import Checkpoints
from aethermind.testing.families.parity import generate, random_prompts
from aethermind_gpt2.architecture import GPT2
from aethermind_gpt2.conformance import CASES


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers writes it."""
    return Checkpoints(tmp_path_factory.mktemp).directory(CASES[0])


BUFFERS = {f"h.{layer}.attn.bias": np.ones((1, 1, 8, 8), np.uint8) for layer in range(2)}


@pytest.mark.parametrize(
    ("prefix", "table", "besides"),
    [("", "wte.weight", BUFFERS), ("transformer.", "lm_head.weight", {})],
    ids=["as_openai_s_own", "as_safetensors_save_model"],
)
def test_other_names(
    runtime: Runtime, directory: Path, tmp_path: Path, prefix: str, table: str, besides: dict[str, Any]
) -> None:
    copied = Path(shutil.copytree(directory, tmp_path / "copied"))
    tensors = {name.removeprefix("transformer."): one for name, one in load_file(copied / "model.safetensors").items()}
    matrix = tensors.pop("wte.weight")
    renamed = {prefix + name: values for name, values in tensors.items()} | {table: matrix} | besides
    save_file(renamed, copied / "model.safetensors")
    answers = []
    for path in (directory, copied):
        with LLM(path, device="cpu", runtime=runtime) as llm:
            answers.append(generate(llm, random_prompts(9), max_tokens=8)[0][0].token_ids)
    assert answers[0] == answers[1]


def test_positions_end_with_the_table(runtime: Runtime, directory: Path) -> None:
    with LLM(directory, device="numpy", runtime=runtime) as llm:
        assert llm.info.max_model_len == CASES[0].config["n_positions"]
    with pytest.raises(InvalidArgumentError, match="the 96 positions that the model is made for"):
        LLM(directory, device="numpy", max_model_len=97, runtime=runtime)


def test_an_unsupported_feature_is_named() -> None:
    with pytest.raises(ConfigError, match="add_cross_attention"):
        GPT2.create({"add_cross_attention": True})
    with pytest.raises(ConfigError, match="activation_function 'relu'"):
        GPT2.create({"activation_function": "relu"})
