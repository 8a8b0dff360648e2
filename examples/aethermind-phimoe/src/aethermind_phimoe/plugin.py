"""What this package registers: an operator, a kernel for it, and the architecture that uses it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-phimoe"


@hookimpl
def register_operators(registry: Any) -> None:
    registry.register(import_module("aethermind_phimoe.router").SPARSE_MIXER, provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("numpy", lambda: import_module("aethermind_phimoe.router").KERNELS, provider=_PROVIDER)


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "PhimoeForCausalLM", "aethermind_phimoe.architecture:PHIMOE", aliases=("phimoe",), provider=_PROVIDER
    )
