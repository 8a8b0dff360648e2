"""What this package registers: an operator, a kernel for one device, and an architecture that uses it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-geglu"


@hookimpl
def register_operators(registry: Any) -> None:
    registry.register(import_module("aethermind_geglu.page").GEGLU, provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("numpy", lambda: import_module("aethermind_geglu.kernels").KERNELS, provider=_PROVIDER)


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("GegluForCausalLM", "aethermind_geglu.architecture:GEGLU", provider=_PROVIDER)
