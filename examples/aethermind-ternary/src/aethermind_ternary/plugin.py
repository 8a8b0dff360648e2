"""What this package registers: a weight format, and kernels for it on one device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    from aethermind.ops.weight_format import WeightFormat

_PROVIDER = "aethermind-ternary"


@hookimpl
def register_weight_formats(registry: Any) -> None:
    registry.register(_parse, names=["ternary"], provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("numpy", lambda: import_module("aethermind_ternary.kernels").KERNELS, provider=_PROVIDER)


def _parse(name: str) -> WeightFormat | None:
    if name != "ternary":
        return None
    weight_format: WeightFormat = import_module("aethermind_ternary.format").TERNARY
    return weight_format
