"""What this package registers: three architectures, their answer formats and GGUF files."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-glm"
_CASES = "aethermind_glm.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("GlmForCausalLM", "aethermind_glm.architecture:GLM", aliases=("GlmModel", "glm"))
    register("Glm4ForCausalLM", "aethermind_glm.architecture:GLM4", aliases=("Glm4Model", "glm4"))
    register("Glm4MoeForCausalLM", "aethermind_glm.mixture:GLM4_MOE", aliases=("Glm4MoeModel", "glm4_moe"))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    for name in ("Glm4ForCausalLM", "Glm4MoeForCausalLM"):
        registry.register(name, "aethermind_glm.answers:GLM4", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("glm4", "aethermind_glm.gguf:GLM4", provider=_PROVIDER)
    registry.register("glm4moe", "aethermind_glm.gguf:GLM4_MOE", provider=_PROVIDER)
