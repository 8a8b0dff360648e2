"""What this package registers: two architectures."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-llama"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.architecture:LLAMA", provider=_PROVIDER)
    registry.register("MistralForCausalLM", "aethermind_llama.architecture:MISTRAL", provider=_PROVIDER)
