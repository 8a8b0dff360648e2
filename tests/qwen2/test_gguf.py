"""A .gguf file answers as the directory that it was made from: the same logits, tokens and chats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tests.end_to_end.gguf_files import write_gguf
from tests.qwen2.checkpoints import CASES

from aethermind import LLM, Runtime
from aethermind.model import read_decoder_config
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import generate
from aethermind_qwen2.gguf import QWEN2, QWEN3

NAMES = ("head_dim_8", "seven_kv_heads_tied_odd_intermediate", "yarn", "linear", "qwen3_head_dim_64_tied")
CHOSEN = [family for family in CASES if family.name in NAMES]
ARCH_OF = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
PROMPTS = [[5, 17, 3, 99, 41], [7], list(range(60, 90))]


def assert_twins(device: str, runtime: Runtime, directory: Path, path: Path) -> None:
    answers = []
    for model in (directory, path):
        with LLM(model, device=device, runtime=runtime, max_num_batched_tokens=64) as llm:
            answers.append((llm.info, generate(llm, PROMPTS, max_tokens=12)[0]))
    (info, wanted), (gguf_info, found) = answers
    assert gguf_info == replace(info, model=str(path), load_s=gguf_info.load_s)
    for one, other in zip(wanted, found, strict=True):
        assert one.token_ids == other.token_ids
        assert np.array_equal(np.stack(one.logits), np.stack(other.logits))


@pytest.mark.parametrize("family", CHOSEN, ids=str)
def test_families(
    device: str, runtime: Runtime, checkpoint: Callable[[ModelCase], Path], family: ModelCase, tmp_path: Path
) -> None:
    directory = checkpoint(family)
    path = write_gguf(directory, tmp_path / "model.gguf", arch=ARCH_OF[family.architecture])
    assert_twins(device, runtime, directory, path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(
    device: str, runtime: Runtime, checkpoint: Callable[[ModelCase], Path], dtype: torch.dtype, tmp_path: Path
) -> None:
    original = checkpoint(CHOSEN[0])
    directory = tmp_path / "rounded"
    transformers.AutoModelForCausalLM.from_pretrained(original, dtype=dtype).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((original / name).read_bytes())
    path = write_gguf(directory, tmp_path / "model.gguf")
    assert_twins(device, runtime, directory, path)


@pytest.mark.parametrize("family", CHOSEN, ids=str)
def test_the_configuration_is_that_of_config_json(
    runtime: Runtime, checkpoint: Callable[[ModelCase], Path], family: ModelCase, tmp_path: Path
) -> None:
    directory = checkpoint(family)
    path = write_gguf(directory, tmp_path / "model.gguf", arch=ARCH_OF[family.architecture])
    raw = json.loads((directory / "config.json").read_text())
    found = runtime.open_source(path).config()
    assert found["architectures"] == raw["architectures"]
    theirs = read_decoder_config(raw, defaults={})
    ours = read_decoder_config(found, defaults={})
    assert ours == replace(theirs, rms_norm_eps=ours.rms_norm_eps, eos_token_ids=ours.eos_token_ids)
    assert np.float32(ours.rms_norm_eps) == np.float32(theirs.rms_norm_eps)


def test_distilled_models_split_text_as_the_others_do() -> None:
    assert QWEN2.splits["deepseek-r1-qwen"] == QWEN2.splits["qwen2"] == QWEN3.splits["qwen2"]
