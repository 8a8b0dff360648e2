"""What this package registers: an architecture, its GGUF files, its answer format, and a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-olmo2"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("Olmo2ForCausalLM", "aethermind_olmo2.architecture:OLMO2", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("olmo2", "aethermind_olmo2.gguf:OLMO2", provider=_PROVIDER)


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("Olmo2ForCausalLM", "aethermind_olmo2.answers:OLMO2", provider=_PROVIDER)


@hookimpl
def register_models(registry: Any) -> None:
    registry.register("tiny-olmo2", lambda: Path(__file__).with_name("tiny"), provider=_PROVIDER)
