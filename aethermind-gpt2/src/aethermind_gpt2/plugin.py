"""What this package registers: one architecture."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-gpt2"
_CASES = "aethermind_gpt2.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "GPT2LMHeadModel",
        "aethermind_gpt2.architecture:GPT2",
        provider=_PROVIDER,
        cases=_CASES,
        aliases=("GPT2Model", "gpt2"),
    )
