"""What this package registers: three architectures, their answer formats (how reasoning and tool calls are marked), and
GGUF files of two.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-gemma"
_CASES = "aethermind_gemma.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("Gemma2ForCausalLM", "aethermind_gemma.architecture:GEMMA2", aliases=("Gemma2Model", "gemma2"))
    register("Gemma3ForCausalLM", "aethermind_gemma.architecture:GEMMA3", aliases=("Gemma3TextModel", "gemma3_text"))
    register("Gemma3ForConditionalGeneration", "aethermind_gemma.architecture:GEMMA3_WITH_IMAGES", aliases=("gemma3",))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"):
        registry.register(name, "aethermind_gemma.answers:GEMMA", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("gemma2", "aethermind_gemma.gguf:GEMMA2", provider=_PROVIDER)
    registry.register("gemma3", "aethermind_gemma.gguf:GEMMA3", provider=_PROVIDER)
