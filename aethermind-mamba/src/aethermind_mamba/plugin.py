"""Registers three architectures and their GGUF files."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-mamba"
_CASES = "aethermind_mamba.conformance:CASES"


@hookimpl
def register_architectures(registry: Any) -> None:
    register = partial(registry.register, provider=_PROVIDER, cases=_CASES)
    register("Mamba2ForCausalLM", "aethermind_mamba.mamba2:MAMBA2", aliases=("Mamba2Model", "mamba2"))
    register("FalconH1ForCausalLM", "aethermind_mamba.falcon_h1:FALCON_H1", aliases=("FalconH1Model", "falcon_h1"))
    register("Lfm2ForCausalLM", "aethermind_mamba.lfm2:LFM2", aliases=("Lfm2Model", "lfm2"))


@hookimpl
def register_gguf_families(registry: Any) -> None:
    for name, family in (("falcon-h1", "FALCON_H1"), ("lfm2", "LFM2"), ("mamba2", "MAMBA2")):
        registry.register(name, f"aethermind_mamba.gguf:{family}", provider=_PROVIDER)
