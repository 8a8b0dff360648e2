"""What the kit does not ask of every family: bfloat16's distance from the truth, instruction sets, long contexts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.qwen2.checkpoints import CASES, reference_outputs
from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

from aethermind import LLM, Runtime
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import assert_matches, generate, random_prompts
from aethermind_cpu.isa import built_levels

CheckpointOf = Callable[[ModelCase], Path]

NUM_STEPS = 64


def case_named(name: str) -> ModelCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    device: str, runtime: Runtime, checkpoint: CheckpointOf, case: ModelCase, dtype: str
) -> None:
    assert_no_further_from_the_truth(case, checkpoint(case), dtype, device, runtime)


@pytest.mark.parametrize("isa", [isa.label for isa in built_levels()])
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


def test_context_beyond_the_trained_length_needs_an_option(runtime: Runtime, checkpoint: CheckpointOf) -> None:
    """Dynamic scaling: the trained context by default, then one set of frequencies for the length that is asked for."""
    directory = checkpoint(case_named("dynamic_beyond"))
    trained = LLM(directory, device="numpy", runtime=runtime)
    assert trained.info.max_model_len == 32
    (generated,), _ = generate(trained, random_prompts(20), 8)
    assert_matches(generated, reference_outputs(directory))
