"""What this package registers: two architectures, and their GGUF files."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-llama"
_CASES = "aethermind_llama.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.architecture:LLAMA", provider=_PROVIDER, cases=_CASES)
    registry.register("MistralForCausalLM", "aethermind_llama.architecture:MISTRAL", provider=_PROVIDER, cases=_CASES)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("llama", "aethermind_llama.gguf:LLAMA", provider=_PROVIDER)
