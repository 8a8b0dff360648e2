"""What this package registers: two architectures, and their GGUF files."""

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


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.answers:LLAMA", provider=_PROVIDER)
    registry.register("MistralForCausalLM", "aethermind_llama.answers:MISTRAL", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("llama", "aethermind_llama.gguf:LLAMA", provider=_PROVIDER)
