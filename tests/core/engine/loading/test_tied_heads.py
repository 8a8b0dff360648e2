"""A tied model whose checkpoint also stores its output matrix: it has to equal the embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.end_to_end.models import copy_demo

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import CheckpointError

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("head_of", "fits"),
    [
        (lambda table: table, True),
        (lambda table: table.half(), True),
        (lambda table: table.double(), True),
        (lambda table: (table * 1.1).half(), False),
        (lambda table: table.half()[:, :-1], False),
    ],
    ids=["same", "narrower", "wider", "others", "of_another_shape"],
)
def test_a_stored_output_matrix_has_to_equal_the_embeddings(
    runtime: Runtime, tmp_path: Path, head_of: Callable[[torch.Tensor], torch.Tensor], fits: bool
) -> None:
    directory = copy_demo(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors[HEAD] = head_of(tensors[TABLE]).clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if fits:
        LLM(directory, device="numpy", max_model_len=64, runtime=runtime).close()
    else:
        with pytest.raises(CheckpointError, match=r"a lm_head\.weight of other values"):
            LLM(directory, device="numpy", max_model_len=64, runtime=runtime)


def test_a_stored_output_matrix_replaces_missing_embeddings(runtime: Runtime, tmp_path: Path) -> None:
    """As in what safetensors' `save_model` writes."""
    whole, directory = copy_demo(tmp_path / "whole"), copy_demo(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors[HEAD] = tensors.pop(TABLE)
    save_file(tensors, directory / "model.safetensors", metadata={TABLE: HEAD})
    answers = []
    for path in (whole, directory):
        with LLM(path, device="numpy", max_model_len=64, runtime=runtime) as llm:
            answers.append(llm.generate("The fox", SamplingParams(max_tokens=4, temperature=0))[0].outputs[0].token_ids)
    assert answers[0] == answers[1]
