"""The families of this project against transformers by the kit, on each device; and that the kit sees what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
import typer.testing
from release.distributions import distributions

from aethermind import Runtime
from aethermind.checkpoint import AdaptedTensors, StackedTensors, TensorStack
from aethermind.cli.app import app
from aethermind.errors import InvalidArgumentError
from aethermind.testing.families import Bench, Checkpoints, ModelCase, cases_of, checks_of
from aethermind.testing.families.case import architectures_of, standard_cases
from aethermind.testing.families.parity import reference_of
from aethermind_bert.architecture import Bert, BertArchitecture
from aethermind_bert.conformance import CASES as BERT_CASES
from aethermind_gpt2.architecture import Gpt2
from aethermind_gpt2.conformance import CASES as GPT2_CASES
from aethermind_llama.architecture import LlamaArchitecture, MistralArchitecture
from aethermind_llama.conformance import CASES as LLAMA_CASES
from aethermind_llama.mixture import MixtralArchitecture, SparseLlama


def everything() -> Iterator[Any]:
    """Each check of each case of the packages of this tree."""
    runtime = Runtime.boot()
    for package in [one.name for one in distributions()]:
        for architecture in architectures_of(runtime, package):
            for case in cases_of(runtime, architecture):
                for check in checks_of(case, runtime):
                    yield pytest.param(case, check, id=f"{case}-{check.__name__}")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.mark.parametrize(("case", "check"), list(everything()))
def test_families_of_this_project_conform(
    device: str, runtime: Runtime, checkpoints: Checkpoints, case: ModelCase, check: Callable[[Bench], None]
) -> None:
    check(Bench(case, runtime, device, checkpoints))


def mutant_of(method: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """Replaces a method of a model's or architecture's class by one that gets the right one, then its arguments."""

    def plant(monkeypatch: pytest.MonkeyPatch, owner: Any) -> None:
        monkeypatch.setattr(owner, method, partialmethod(change, getattr(owner, method)))

    return plant


def wrong_theta(self: Any, create: Callable[..., Any], raw: Mapping[str, Any]) -> Any:
    rope = {**raw.get("rope_parameters", {}), "rope_type": "default", "rope_theta": 5000.0}
    return create(self, {**raw, "rope_parameters": rope})


def no_window(self: Any, create: Callable[..., Any], raw: Mapping[str, Any]) -> Any:
    return create(self, {**raw, "sliding_window": None})


def other_gelu(self: Any, create: Callable[..., Any], raw: Mapping[str, Any]) -> Any:
    return create(self, {**raw, "hidden_act": "gelu_new"})


def queries_for_keys(self: Any, adapt: Callable[..., Any], stored: Any) -> Any:
    found = adapt(self, stored)
    parts = {name: found._parts[name.replace("attn.k.", "attn.q.")] for name in found._parts}
    return AdaptedTensors(stored, parts)


def types_forgotten(self: Any, adapt: Callable[..., Any], stored: Any) -> Any:
    parts = adapt(self, stored)._parts
    return AdaptedTensors(stored, {name: replace(part, added=None) for name, part in parts.items()})


def weights_not_renormalized(self: Any, create: Callable[..., Any], raw: Mapping[str, Any]) -> Any:
    return create(self, {**raw, "norm_topk_prob": False})


def experts_in_other_order(self: Any, adapt: Callable[..., Any], stored: Any) -> Any:
    found = adapt(self, stored)
    stacks = {
        name: TensorStack(stack.stored_names[::-1]) if name.endswith("up_proj.weight") else stack
        for name, stack in found._stacks.items()
    }
    return StackedTensors(stored, stacks)


MUTANTS = {
    "router": ("mixtral", MixtralArchitecture, mutant_of("create", weights_not_renormalized), "one_prompt_alone"),
    "experts": ("mixtral", SparseLlama, mutant_of("adapt", experts_in_other_order), "logits_of_every_position"),
    "theta": ("llama", LlamaArchitecture, mutant_of("create", wrong_theta), "logits_of_every_position"),
    "window": ("mistral", MistralArchitecture, mutant_of("create", no_window), "chunks_of_prompts_in_ragged_batches"),
    "keys": ("gelu_new", Gpt2, mutant_of("adapt", queries_for_keys), "every_tensor_is_read_once"),
    "types": ("bert", Bert, mutant_of("adapt", types_forgotten), "a_checkpoint_that_does_not_fit_is_refused"),
    "gelu": ("bert", BertArchitecture, mutant_of("create", other_gelu), "vectors_of_texts"),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_family_with_a_bug_is_found(
    runtime: Runtime, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    name, owner, plant, expected = MUTANTS[bug]
    (case,) = [case for cases in (LLAMA_CASES, GPT2_CASES, BERT_CASES) for case in cases if case.name == name][:1]
    (check,) = [check for check in checks_of(case, runtime) if check.__name__ == expected]
    bench = Bench(case, runtime, "numpy", checkpoints)
    bench.directory.stat()
    plant(monkeypatch, owner)
    with pytest.raises(AssertionError):
        check(bench)


def test_without_transformers_family_a_reference_is_asked_for() -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no NobodysForCausalLM. Give the family's cases a reference"):
        reference_of(ModelCase("small", "NobodysForCausalLM"))


def test_the_names_that_mean_a_family(runtime: Runtime) -> None:
    assert {"LlamaForCausalLM", "MistralForCausalLM"} <= set(architectures_of(runtime, "llama"))
    assert architectures_of(runtime, "llama") == architectures_of(runtime, "aethermind-llama")
    assert architectures_of(runtime, "BertModel") == ["BertModel"]
    assert architectures_of(runtime, "cpu") == []
    assert [case.name for case in standard_cases("MineForCausalLM")] == ["small", "tied", "one_kv_head"]


def test_the_command() -> None:
    words = ("conform", "qwen2", "-k", "gguf_names or (head_dim_80 and every_tensor)", "--json")
    result = typer.testing.CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["backend"], report["ok"], report["level"]) == ("qwen2", True, None)
    assert [case["name"] for case in report["cases"]] == [
        "families.model[every_tensor_is_read_once-head_dim_80]",
        "families.gguf_names[qwen2-head_dim_8]",
        "families.gguf_names[qwen2moe-qwen2_moe]",
        "families.gguf_names[qwen3-qwen3_head_dim_128]",
        "families.gguf_names[qwen35-qwen3_5]",
        "families.gguf_names[qwen35moe-qwen3_5_moe]",
        "families.gguf_names[qwen3moe-qwen3_moe]",
        "families.gguf_names[qwen3next-qwen3_next]",
    ]
