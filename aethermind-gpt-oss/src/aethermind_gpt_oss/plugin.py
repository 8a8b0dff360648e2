"""What this package registers: an architecture, its answer format and its GGUF files."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-gpt-oss"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "GptOssForCausalLM",
        "aethermind_gpt_oss.architecture:GPT_OSS",
        provider=_PROVIDER,
        cases="aethermind_gpt_oss.conformance:CASES",
        aliases=("GptOssModel", "gpt_oss"),
    )


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("GptOssForCausalLM", "aethermind_gpt_oss.answers:GPT_OSS", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("gpt-oss", "aethermind_gpt_oss.gguf:GPT_OSS", provider=_PROVIDER)
