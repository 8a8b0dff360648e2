"""What this package registers: two architectures, their answer formats and GGUF files."""

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


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("Glm4ForCausalLM", "aethermind_glm.answers:GLM4", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("glm4", "aethermind_glm.gguf:GLM4", provider=_PROVIDER)
