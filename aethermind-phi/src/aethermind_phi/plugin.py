"""Registers two architectures, an answer format and GGUF files."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-phi"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "PhiForCausalLM",
        "aethermind_phi.phi2:PHI2",
        provider=_PROVIDER,
        cases="aethermind_phi.conformance:CASES",
        aliases=("PhiModel", "phi"),
    )
    registry.register(
        "Phi3ForCausalLM",
        "aethermind_phi.architecture:PHI3",
        provider=_PROVIDER,
        cases="aethermind_phi.conformance:CASES",
        aliases=("Phi3Model", "phi3"),
    )


@hookimpl
def register_answer_formats(registry: Any) -> None:
    registry.register("Phi3ForCausalLM", "aethermind_phi.answers:PHI3", provider=_PROVIDER)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    registry.register("phi2", "aethermind_phi.gguf:PHI2", provider=_PROVIDER)
    registry.register("phi3", "aethermind_phi.gguf:PHI3", provider=_PROVIDER)
