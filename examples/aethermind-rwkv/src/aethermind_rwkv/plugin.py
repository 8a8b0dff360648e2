"""What this package registers: two operators, their kernels for devices with host memory, and an architecture."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-rwkv"


@hookimpl
def register_operators(registry: Any) -> None:
    for operator in import_module("aethermind_rwkv.operators").OPERATORS:
        registry.register(operator, provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    for backend in ("numpy", "cpu"):
        registry.register(backend, partial(_load_kernels, backend), provider=_PROVIDER)


def _load_kernels(backend: str) -> list[Any]:
    kernels: list[Any] = import_module("aethermind_rwkv.operators").kernels_for(backend)
    return kernels


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("RwkvForCausalLM", "aethermind_rwkv.architecture:RWKV", aliases=("rwkv",), provider=_PROVIDER)
