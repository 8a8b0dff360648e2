"""Base models alone, as Qwen3-Embedding is published: other names, no output matrix, transformers' vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.qwen2.checkpoints import reference_outputs, write_checkpoint

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.testing.families import SMALL, ModelCase

TEXT = [5, 17, 3, 99, 41, 8]
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@pytest.fixture
def directory(checkpoint: Callable[[ModelCase], Path], architecture: str, is_tied: bool) -> Path:
    return checkpoint(ModelCase("base", architecture, {**SMALL, "tie_word_embeddings": is_tied}))


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("architecture", ["Qwen3Model", "Qwen2Model", "LlamaModel", "MistralModel"])
def test_vectors(runtime: Runtime, directory: Path, is_tied: bool) -> None:
    states = reference_outputs(directory)(TEXT)
    with LLM(directory, device="cpu", dtype="float32", runtime=runtime) as llm:
        for pooling, wanted in (("last", states[-1]), ("mean", states.mean(axis=0))):
            (found,) = llm.embed({"prompt_token_ids": TEXT}, pooling=pooling)
            np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), rtol=0, atol=2e-6)
        if is_tied:  # then the embeddings are the output matrix
            (answer,) = llm.generate([{"prompt_token_ids": TEXT}], GREEDY)
            table = llm.engine.compiled.source.weights().array("embed_tokens.weight")
            assert answer.outputs[0].token_ids == [int(np.argmax(table @ states[-1]))]
        else:
            with pytest.raises(InvalidArgumentError, match="generates nothing: the checkpoint has no output matrix"):
                llm.generate([{"prompt_token_ids": TEXT}], GREEDY)


def test_a_whole_model_without_its_output_matrix_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    directory = write_checkpoint(ModelCase("whole", "Qwen2ForCausalLM", SMALL), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing \(lm_head\.weight"):
        LLM(directory, device="numpy", runtime=runtime)
