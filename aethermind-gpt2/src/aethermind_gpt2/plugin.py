"""Registers this package's architectures and their GGUF files."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-gpt2"
_CASES = "aethermind_gpt2.conformance:CASES"
_OTHERS = (
    ("BloomForCausalLM", "bloom:BLOOM", ("BloomModel", "bloom")),
    ("GPTNeoXForCausalLM", "gpt_neox:GPT_NEOX", ("GPTNeoXModel", "gpt_neox")),
    ("MptForCausalLM", "mpt:MPT", ("MptModel", "mpt")),
)
"""Name in config.json, module and object, and aliases."""


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "GPT2LMHeadModel",
        "aethermind_gpt2.architecture:GPT2",
        provider=_PROVIDER,
        cases=_CASES,
        aliases=("GPT2Model", "gpt2"),
    )
    for name, target, aliases in _OTHERS:
        registry.register(name, f"aethermind_gpt2.{target}", provider=_PROVIDER, cases=_CASES, aliases=aliases)


@hookimpl
def register_gguf_families(registry: Any) -> None:
    for name, family in (("bloom", "BLOOM"), ("gpt2", "GPT2"), ("gptneox", "GPT_NEOX"), ("mpt", "MPT")):
        registry.register(name, f"aethermind_gpt2.gguf:{family}", provider=_PROVIDER)
