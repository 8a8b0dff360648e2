"""What this package registers."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_ARCHITECTURE = "PixelsForCausalLM"
_PROVIDER = "aethermind-pixels"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(_ARCHITECTURE, "aethermind_pixels.architecture:PIXELS", provider=_PROVIDER)


@hookimpl
def register_input_processors(registry: Any) -> None:
    registry.register(_ARCHITECTURE, "aethermind_pixels.processor:PIXELS_PROCESSOR", provider=_PROVIDER)
