"""Every instruction set that this CPU has runs, and all of them say the same."""

from __future__ import annotations

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind_cpu import _native
from aethermind_cpu.isa import Isa, isa_limit
from aethermind_cpu.kernels import kernels

LEVELS = [isa for isa in Isa if isa.level <= isa_limit().level]


def test_each_level_includes_the_ones_before_it() -> None:
    for lower, higher in zip(list(Isa), list(Isa)[1:], strict=False):
        assert lower.features < higher.features
        assert lower.level < higher.level


def test_every_level_of_this_cpu_has_kernels_of_its_own() -> None:
    supported = {entry.variant for entry in _native.kernel_table() if entry.is_supported}
    assert supported == {isa.label for isa in LEVELS}


@pytest.mark.parametrize("isa", LEVELS, ids=lambda isa: isa.label)
def test_a_forced_level_is_the_highest_that_is_taken(monkeypatch: pytest.MonkeyPatch, isa: Isa) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_ISA", isa.label)
    priorities = {kernel.name: kernel.priority for kernel in kernels()}
    assert max(priorities, key=priorities.__getitem__) == f"cpu/{isa.label}"


def test_every_level_generates_the_same_greedy_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model in float32: two requests at once, so that decode has more than one row."""
    stories = {}
    for isa in LEVELS:
        monkeypatch.setenv("AETHERMIND_CPU_ISA", isa.label)
        llm = LLM(device="cpu", dtype="float32", max_model_len=128, runtime=Runtime.boot())
        outputs = llm.generate(["Once upon a time", "The dog"], SamplingParams(temperature=0.0, max_tokens=40))
        stories[isa.label] = [output.outputs[0].token_ids for output in outputs]
    assert all(story == stories["portable"] for story in stories.values()), stories
