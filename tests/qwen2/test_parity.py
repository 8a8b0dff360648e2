"""Random models in many shapes against transformers: logits, greedy tokens, and bfloat16's distance from the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.qwen2.checkpoints import FAMILIES, Family, logits_of, reference_model
from tests.qwen2.generation import generate
from tests.qwen2.parity import assert_close_to, assert_matches, random_prompts

from aethermind import LLM, Runtime
from aethermind_cpu.isa import isa_levels

CheckpointOf = Callable[[Family], Path]

by_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
NUM_STEPS = 64


def family_named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def exact_model(family: Family, directory: Path) -> Any:
    return reference_model(directory, context=family.max_model_len)


@by_family
def test_logits_of_every_position(device: str, runtime: Runtime, checkpoint: CheckpointOf, family: Family) -> None:
    """All prefixes of one text as prompts of one ragged batch, computed in a single step."""
    (text,) = random_prompts(40)
    directory = checkpoint(family)
    llm = LLM(
        directory, device=device, max_model_len=family.max_model_len, max_num_batched_tokens=1024, runtime=runtime
    )
    generated, decisions = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    assert len(decisions) == 1
    assert_close_to(logits_of(exact_model(family, directory), text), [one.logits[0] for one in generated])


@by_family
def test_ragged_batches_of_prefill_and_decode(
    device: str, runtime: Runtime, checkpoint: CheckpointOf, family: Family
) -> None:
    """Requests that join while others decode, their prompts computed in small chunks."""
    directory = checkpoint(family)
    llm = LLM(
        directory,
        device=device,
        max_model_len=family.max_model_len,
        max_num_seqs=4,
        max_num_batched_tokens=12,
        block_size=4,
        runtime=runtime,
    )
    generated, decisions = generate(llm, random_prompts(1, 41, 5, 23), NUM_STEPS, stagger=3)
    assert any(0 < step.num_decodes < len(step.scheduled) for step in decisions), "no step mixed prefill and decode"
    assert any(not entry.needs_logits for step in decisions for entry in step.scheduled), "no prompt was cut in chunks"
    for one in generated:
        assert len(one.token_ids) == NUM_STEPS
        assert_matches(one, exact_model(family, directory))


@by_family
def test_one_request_alone(device: str, runtime: Runtime, checkpoint: CheckpointOf, family: Family) -> None:
    directory = checkpoint(family)
    llm = LLM(directory, device=device, max_model_len=family.max_model_len, runtime=runtime)
    (generated,), _ = generate(llm, random_prompts(17), NUM_STEPS)
    assert_matches(generated, exact_model(family, directory))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@by_family
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    device: str, runtime: Runtime, checkpoint: CheckpointOf, family: Family, dtype: str
) -> None:
    """The truth is float64 arithmetic on the same rounded weights; distances are root mean squares over all logits."""
    directory = checkpoint(family)
    (text,) = random_prompts(40)
    llm = LLM(
        directory,
        device=device,
        dtype=dtype,
        max_model_len=family.max_model_len,
        max_num_batched_tokens=1024,
        runtime=runtime,
    )
    generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    ours = np.stack([one.logits[0] for one in generated])
    theirs, truth = (
        logits_of(reference_model(directory, getattr(torch, dtype), computed, family.max_model_len), text)
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
    directory = checkpoint(family_named(name))
    llm = LLM(directory, device="cpu", max_num_seqs=4, max_num_batched_tokens=12, runtime=Runtime.boot())
    for generated in generate(llm, random_prompts(1, 41, 5, 23), NUM_STEPS, stagger=3)[0]:
        assert_matches(generated, reference_model(directory))


def test_context_beyond_the_trained_one_has_to_be_asked_for(runtime: Runtime, checkpoint: CheckpointOf) -> None:
    """Dynamic scaling: the trained context by default, then one set of frequencies for the length that is asked for."""
    family = family_named("dynamic_beyond")
    trained = LLM(checkpoint(family), device="numpy", runtime=runtime)
    assert trained.info.max_model_len == 32
    (generated,), _ = generate(trained, random_prompts(20), 8)
    assert_matches(generated, reference_model(checkpoint(family)))
