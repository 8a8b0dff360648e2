"""Random models in many shapes against transformers: float32 without TF32, sixteen bits by their distance to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aethermind import LLM, Runtime

torch = pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

from tests.qwen2.checkpoints import FAMILIES, Family, logits_of, reference_model  # noqa: E402
from tests.qwen2.generation import generate  # noqa: E402
from tests.qwen2.parity import assert_close_to, assert_matches, random_prompts  # noqa: E402

pytestmark = pytest.mark.cuda

CheckpointOf = Callable[[Family], Path]
by_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def open_model(runtime: Runtime, directory: Path, family: Family, dtype: str, **options: Any) -> LLM:
    """The model on the GPU."""
    return LLM(directory, device="cuda", dtype=dtype, max_model_len=family.max_model_len, runtime=runtime, **options)


def rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


@by_family
def test_logits_of_every_position(runtime: Runtime, checkpoint: CheckpointOf, family: Family) -> None:
    (text,) = random_prompts(40)
    directory = checkpoint(family)
    llm = open_model(runtime, directory, family, "float32", max_num_batched_tokens=1024)
    generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    exact = reference_model(directory, context=family.max_model_len)
    assert_close_to(logits_of(exact, text), [one.logits[0] for one in generated])


@by_family
def test_batches_of_prefill_and_decode(runtime: Runtime, checkpoint: CheckpointOf, family: Family) -> None:
    directory = checkpoint(family)
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "block_size": 4}
    llm = open_model(runtime, directory, family, "float32", **options)
    generated, decisions = generate(llm, random_prompts(1, 41, 5, 23), 32, stagger=3)
    assert any(0 < step.num_decodes < len(step.scheduled) for step in decisions)
    for one in generated:
        assert_matches(one, reference_model(directory, context=family.max_model_len))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@by_family
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    runtime: Runtime, checkpoint: CheckpointOf, family: Family, dtype: str
) -> None:
    (text,) = random_prompts(40)
    directory = checkpoint(family)
    llm = open_model(runtime, directory, family, dtype, max_num_batched_tokens=1024)
    generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    ours = np.stack([one.logits[0] for one in generated])
    theirs, truth = (
        logits_of(reference_model(directory, getattr(torch, dtype), computed, family.max_model_len), text)
        for computed in (getattr(torch, dtype), torch.float64)
    )
    assert rms(ours - truth) <= rms(theirs - truth)
