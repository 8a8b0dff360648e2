"""What this package registers: two architectures, an answer format and GGUF files."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-deepseek"
_CASES = "aethermind_deepseek.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    v2, v3 = (f"aethermind_deepseek.architecture:DEEPSEEK_{version}" for version in ("V2", "V3"))
    register("DeepseekV2ForCausalLM", v2, aliases=("DeepseekV2Model", "deepseek_v2"))
    register("DeepseekV3ForCausalLM", v3, aliases=("DeepseekV3Model", "deepseek_v3", "kimi_k2"))


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("DeepseekV3ForCausalLM", "aethermind_deepseek.answers:DEEPSEEK_V3", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("deepseek2", "aethermind_deepseek.gguf:DEEPSEEK2", provider=_PROVIDER)
