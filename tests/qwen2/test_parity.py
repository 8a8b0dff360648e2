"""What the kit does not ask of every family: bfloat16's distance from the truth, instruction sets, long contexts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.qwen2.checkpoints import CASES, reference_model, reference_outputs

from aethermind import LLM, Runtime
from aethermind.testing.families import ModelCase
from aethermind.testing.families.generation import generate
from aethermind.testing.families.parity import assert_matches, random_prompts
from aethermind.testing.families.transformers_reference import outputs_of
from aethermind_cpu.isa import isa_levels

CheckpointOf = Callable[[ModelCase], Path]

NUM_STEPS = 64


def case_named(name: str) -> ModelCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    device: str, runtime: Runtime, checkpoint: CheckpointOf, case: ModelCase, dtype: str
) -> None:
    """The truth is float64 arithmetic on the same rounded weights; distances are root mean squares over all logits."""
    directory = checkpoint(case)
    (text,) = random_prompts(40)
    llm = LLM(
        directory,
        device=device,
        dtype=dtype,
        max_model_len=case.max_model_len,
        max_num_batched_tokens=1024,
        runtime=runtime,
    )
    generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    ours = np.stack([one.logits[0] for one in generated])
    theirs, truth = (
        outputs_of(reference_model(directory, getattr(torch, dtype), computed, case.max_model_len), text)
        for computed in (getattr(torch, dtype), torch.float64)
    )
    assert rms(ours - truth) <= rms(theirs - truth)


def rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.mark.parametrize("isa", [isa.label for isa in isa_levels()])
@pytest.mark.parametrize("name", ["head_dim_80", "seven_kv_heads_tied_odd_intermediate", "qwen3_sliding"])
def test_every_instruction_set_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, checkpoint: CheckpointOf, isa: str, name: str
) -> None:
    """Each level that this CPU has; where it lacks one, the highest below it runs again."""
    monkeypatch.setenv("AETHERMIND_CPU_ISA", isa)
    directory = checkpoint(case_named(name))
    llm = LLM(directory, device="cpu", max_num_seqs=4, max_num_batched_tokens=12, runtime=Runtime.boot())
    for generated in generate(llm, random_prompts(1, 41, 5, 23), NUM_STEPS, stagger=3)[0]:
        assert_matches(generated, reference_outputs(directory))


def test_context_beyond_the_trained_one_has_to_be_asked_for(runtime: Runtime, checkpoint: CheckpointOf) -> None:
    """Dynamic scaling: the trained context by default, then one set of frequencies for the length that is asked for."""
    directory = checkpoint(case_named("dynamic_beyond"))
    trained = LLM(directory, device="numpy", runtime=runtime)
    assert trained.info.max_model_len == 32
    (generated,), _ = generate(trained, random_prompts(20), 8)
    assert_matches(generated, reference_outputs(directory))
