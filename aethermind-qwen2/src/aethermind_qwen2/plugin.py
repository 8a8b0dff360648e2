"""Registers this package's architectures, their answer formats and GGUF files, and the demo model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-qwen2"
_CASES = "aethermind_qwen2.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("Qwen2ForCausalLM", "aethermind_qwen2.architecture:QWEN2", aliases=("Qwen2Model", "qwen2"))
    register("Qwen3ForCausalLM", "aethermind_qwen2.architecture:QWEN3", aliases=("Qwen3Model", "qwen3"))
    register("Qwen2MoeForCausalLM", "aethermind_qwen2.mixture:QWEN2_MOE", aliases=("Qwen2MoeModel", "qwen2_moe"))
    register("Qwen3MoeForCausalLM", "aethermind_qwen2.mixture:QWEN3_MOE", aliases=("Qwen3MoeModel", "qwen3_moe"))
    register("Qwen3NextForCausalLM", "aethermind_qwen2.hybrid:QWEN3_NEXT", aliases=("Qwen3NextModel", "qwen3_next"))
    register("Qwen3_5ForCausalLM", "aethermind_qwen2.hybrid:QWEN3_5", aliases=("Qwen3_5TextModel", "qwen3_5_text"))
    aliases = ("Qwen3_5MoeTextModel", "qwen3_5_moe_text")
    register("Qwen3_5MoeForCausalLM", "aethermind_qwen2.hybrid:QWEN3_5_MOE", aliases=aliases)
    register("Qwen3_5ForConditionalGeneration", "aethermind_qwen2.hybrid:QWEN3_5_WITH_IMAGES", aliases=("qwen3_5",))
    name = "Qwen3_5MoeForConditionalGeneration"
    register(name, "aethermind_qwen2.hybrid:QWEN3_5_MOE_WITH_IMAGES", aliases=("qwen3_5_moe",))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    for name in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM"):
        registry.register(name, "aethermind_qwen2.answers:QWEN2", provider=_PROVIDER)
    for name in (
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ):
        registry.register(name, "aethermind_qwen2.answers:QWEN3", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    for name, family in (
        ("qwen2", "QWEN2"),
        ("qwen2moe", "QWEN2_MOE"),
        ("qwen3", "QWEN3"),
        ("qwen3moe", "QWEN3_MOE"),
        ("qwen3next", "QWEN3_NEXT"),
        ("qwen35", "QWEN3_5"),
        ("qwen35moe", "QWEN3_5_MOE"),
    ):
        registry.register(name, f"aethermind_qwen2.gguf:{family}", provider=_PROVIDER)


@hookimpl
def register_models(registry: Any) -> None:
    registry.register("demo", _locate_demo, provider=_PROVIDER)


def _locate_demo() -> Path:
    return Path(__file__).parent / "demo"
