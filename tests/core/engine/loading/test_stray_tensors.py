"""Tensors that a model does not use: ignored if they have no effect, refused if they might have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.end_to_end.models import copy_demo

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.errors import CheckpointError

ATTENTION = "model.layers.0.self_attn"
O_BIAS = f"{ATTENTION}.o_proj.bias"


def with_tensors(path: Path, **more: torch.Tensor) -> Path:
    directory = copy_demo(path)
    tensors = load_file(directory / "model.safetensors")
    tensors |= more
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def test_neutral_tensors_are_ignored(runtime: Runtime, tmp_path: Path) -> None:
    more = {O_BIAS: torch.zeros(3), f"{ATTENTION}.k_scale": torch.ones(1), f"{ATTENTION}.v_scale": torch.ones(1)}
    logits = []
    for directory in (copy_demo(tmp_path / "plain"), with_tensors(tmp_path / "more", **more)):
        with LLM(directory, device="numpy", max_model_len=64, runtime=runtime) as llm:
            logits.append(text_logits(llm.engine, [1, 2, 3]))
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("name", [O_BIAS, "score.bias", f"{ATTENTION}.q_scale"])
def test_other_unexpected_tensors_are_refused(runtime: Runtime, tmp_path: Path, name: str) -> None:
    values = torch.zeros(3) if name == "score.bias" else torch.ones(3)
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({name}"):
        LLM(with_tensors(tmp_path / "model", **{name: values}), device="numpy", max_model_len=64, runtime=runtime)
