"""Registers this package's architectures, their answer formats and their GGUF files."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-llama"
_CASES = "aethermind_llama.conformance:CASES"

_LLAMA_LIKE = (
    ("SmolLM3ForCausalLM", "smollm3:SMOLLM3", "SmolLM3Model", "smollm3"),
    ("GraniteForCausalLM", "granite:GRANITE", "GraniteModel", "granite"),
    ("CohereForCausalLM", "cohere:COHERE", "CohereModel", "cohere"),
    ("Cohere2ForCausalLM", "cohere:COHERE2", "Cohere2Model", "cohere2"),
    ("Olmo2ForCausalLM", "olmo:OLMO2", "Olmo2Model", "olmo2"),
    ("Olmo3ForCausalLM", "olmo:OLMO3", "Olmo3Model", "olmo3"),
    ("Ernie4_5ForCausalLM", "ernie:ERNIE4_5", "Ernie4_5Model", "ernie4_5"),
    ("StableLmForCausalLM", "stablelm:STABLELM", "StableLmModel", "stablelm"),
    ("Starcoder2ForCausalLM", "starcoder2:STARCODER2", "Starcoder2Model", "starcoder2"),
)
"""Families that are similar to Llama: name in config.json, module and object, name of the base model, `model_type`."""


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("LlamaForCausalLM", "aethermind_llama.architecture:LLAMA", aliases=("LlamaModel", "llama"))
    register("MistralForCausalLM", "aethermind_llama.architecture:MISTRAL", aliases=("MistralModel", "mistral"))
    register("MixtralForCausalLM", "aethermind_llama.mixture:MIXTRAL", aliases=("MixtralModel", "mixtral"))
    register("OlmoeForCausalLM", "aethermind_llama.mixture:OLMOE", aliases=("OlmoeModel", "olmoe"))
    for name, target, base_model, model_type in _LLAMA_LIKE:
        register(name, f"aethermind_llama.{target}", aliases=(base_model, model_type))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.answers:LLAMA", provider=_PROVIDER)
    registry.register("MistralForCausalLM", "aethermind_llama.answers:MISTRAL", provider=_PROVIDER)
    registry.register("MixtralForCausalLM", "aethermind_llama.answers:MISTRAL", provider=_PROVIDER)
    registry.register("SmolLM3ForCausalLM", "aethermind_llama.answers:SMOLLM3", provider=_PROVIDER)
    registry.register("GraniteForCausalLM", "aethermind_llama.answers:GRANITE", provider=_PROVIDER)
    registry.register("Olmo2ForCausalLM", "aethermind_llama.answers:OLMO3", provider=_PROVIDER)
    registry.register("Olmo3ForCausalLM", "aethermind_llama.answers:OLMO3", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("command-r", "aethermind_llama.gguf:COHERE", provider=_PROVIDER)
    for name in (
        "cohere2",
        "ernie4_5",
        "granite",
        "llama",
        "olmo2",
        "olmoe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ):
        registry.register(name, f"aethermind_llama.gguf:{name.upper()}", provider=_PROVIDER)
