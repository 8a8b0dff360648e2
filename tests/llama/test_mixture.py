"""Mixtral and OLMoE in every form of checkpoint, and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.end_to_end.gguf_files import with_stacked_experts, write_gguf
from tests.qwen2.checkpoints import reference_model, write_checkpoint

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import outputs_of
from aethermind_llama.conformance import CASES

BY_NAME = {case.name: case for case in CASES}
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()
ARCH_OF = {"MixtralForCausalLM": "llama", "OlmoeForCausalLM": "olmoe"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelCase], Path]:
    return cache(lambda case: write_checkpoint(case, tmp_path_factory.mktemp(case.name)))


def error_of(path: Path, expected: np.ndarray[Any, Any], runtime: Runtime) -> float:
    """The largest error of a logit as a fraction of its row's largest."""
    with LLM(path, device="numpy", dtype="float32", max_num_seqs=32, runtime=runtime) as llm:
        actual = text_logits(llm.engine, TEXT)
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


@pytest.mark.parametrize("name", ["mixtral", "mixtral_tied_one_expert", "olmoe"])
def test_a_gguf_file_computes_what_transformers_computes(
    runtime: Runtime, checkpoint: Callable[[ModelCase], Path], name: str, tmp_path: Path
) -> None:
    directory = checkpoint(BY_NAME[name])
    path = write_gguf(directory, tmp_path / "model.gguf", arch=ARCH_OF[BY_NAME[name].architecture])
    config = runtime.open_source(path).config()
    assert config["architectures"] == [BY_NAME[name].architecture]
    assert error_of(path, outputs_of(reference_model(directory), TEXT), runtime) < 1e-5


def test_mixtral_with_the_names_of_other_mixtures(
    runtime: Runtime, checkpoint: Callable[[ModelCase], Path], tmp_path: Path
) -> None:
    """Fused experts, as transformers 5 holds them."""
    directory = checkpoint(BY_NAME["mixtral"])
    tensors = with_stacked_experts(safetensors.torch.load_file(directory / "model.safetensors"))
    for layer in range(2):
        base = f"model.layers.{layer}.mlp"
        tensors[f"{base}.gate.weight"] = tensors.pop(f"model.layers.{layer}.block_sparse_moe.gate.weight")
        gate, up, down = (tensors.pop(f"{base}.experts.{name}_proj.weight") for name in ("gate", "up", "down"))
        tensors |= {f"{base}.experts.gate_up_proj": torch.cat([gate, up], 1), f"{base}.experts.down_proj": down}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    assert error_of(tmp_path, outputs_of(reference_model(directory), TEXT), runtime) < 1e-5


def test_a_gguf_file_with_clipped_queries(
    runtime: Runtime, checkpoint: Callable[[ModelCase], Path], tmp_path: Path
) -> None:
    def clipped(writer: gguf.GGUFWriter) -> None:
        writer.add_clamp_kqv(0.75)

    directory = checkpoint(BY_NAME["olmoe_clipped"])
    path = write_gguf(directory, tmp_path / "model.gguf", arch="olmoe", more=clipped)
    assert error_of(path, outputs_of(reference_model(directory), TEXT), runtime) < 1e-5
