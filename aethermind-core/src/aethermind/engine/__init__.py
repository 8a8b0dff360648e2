"""The inference engine: it loads a model, schedules requests by continuous batching, and runs them step by step."""

from __future__ import annotations

from typing import Any

__all__ = ["Engine", "EngineConfig", "EngineParts", "RequestOutput", "compile_model"]

_MODULE_OF = {
    "Engine": "aethermind.engine.engine",
    "EngineConfig": "aethermind.engine.config",
    "EngineParts": "aethermind.engine.parts",
    "RequestOutput": "aethermind.engine.requests.output",
    "compile_model": "aethermind.engine.loading.loader",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
