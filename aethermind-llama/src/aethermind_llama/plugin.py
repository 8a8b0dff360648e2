"""What this package registers: architectures, their answer formats and their GGUF files."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-llama"
_CASES = "aethermind_llama.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("LlamaForCausalLM", "aethermind_llama.architecture:LLAMA", aliases=("LlamaModel", "llama"))
    register("MistralForCausalLM", "aethermind_llama.architecture:MISTRAL", aliases=("MistralModel", "mistral"))
    register("MixtralForCausalLM", "aethermind_llama.mixture:MIXTRAL", aliases=("MixtralModel", "mixtral"))
    register("OlmoeForCausalLM", "aethermind_llama.mixture:OLMOE", aliases=("OlmoeModel", "olmoe"))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.answers:LLAMA", provider=_PROVIDER)
    registry.register("MistralForCausalLM", "aethermind_llama.answers:MISTRAL", provider=_PROVIDER)
    registry.register("MixtralForCausalLM", "aethermind_llama.answers:MISTRAL", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("llama", "aethermind_llama.gguf:LLAMA", provider=_PROVIDER)
    registry.register("olmoe", "aethermind_llama.gguf:OLMOE", provider=_PROVIDER)
