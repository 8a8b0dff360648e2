"""What this package registers: two architectures."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-llama"
_CASES = "aethermind_llama.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("LlamaForCausalLM", "aethermind_llama.architecture:LLAMA", provider=_PROVIDER, cases=_CASES)
    registry.register("MistralForCausalLM", "aethermind_llama.architecture:MISTRAL", provider=_PROVIDER, cases=_CASES)
