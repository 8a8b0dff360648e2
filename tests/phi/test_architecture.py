"""The output projection of Phi-1 to Phi-2, which has a bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import Checkpoints
from aethermind.testing.families.parity import random_prompts
from aethermind_phi.conformance import CASES

(TEXT,) = random_prompts(24)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_it_is_quantised_and_its_bias_is_not(runtime: Runtime, checkpoints: Checkpoints, device: str) -> None:
    (case,) = (case for case in CASES if case.name == "phi2")
    expected = checkpoints.outputs(case)(TEXT)
    options = {"quantization": "int8", "dtype": "float32", "max_num_seqs": 32, "fallback": "allow", "num_threads": 1}
    with LLM(checkpoints.directory(case), device=device, runtime=runtime, **options) as llm:
        found = text_logits(llm.engine, TEXT)
        formats = llm.engine.compiled.weight_formats
    assert formats["lm_head.weight"].name == "int8"
    assert "lm_head.bias" not in formats
    assert (np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)).max() < 0.05


def test_ranks_have_parts_of_it(runtime: Runtime, checkpoints: Checkpoints) -> None:
    (case,) = (case for case in CASES if case.name == "phi2")
    directory: Path = checkpoints.directory(case)
    options = {"device": "cpu", "dtype": "float32", "fallback": "allow", "num_threads": 1, "runtime": runtime}
    logprobs = []
    for size in (1, 2):
        with LLM(directory, tensor_parallel_size=size, **options) as llm:
            logprobs.append(text_logits(llm.engine, TEXT))
    np.testing.assert_allclose(*logprobs, rtol=0, atol=1e-4)
