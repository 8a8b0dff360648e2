"""AetherMind: LLM inference in which hardware and models are pip packages.

from aethermind import LLM, SamplingParams
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.config import EngineOptions
    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.engine.requests.sessions import SessionInfo
    from aethermind.engine.serving.async_engine import AsyncEngine
    from aethermind.errors import AetherMindError
    from aethermind.llm import LLM
    from aethermind.runtime import Runtime
    from aethermind.sampling.params import SamplingParams, StructuredOutputs

__all__ = [
    "AetherMindError",
    "AsyncEngine",
    "CompletionOutput",
    "EngineOptions",
    "KVCache",
    "LLM",
    "Logprob",
    "RequestOptions",
    "RequestOutput",
    "Runtime",
    "SamplingParams",
    "SessionInfo",
    "StructuredOutputs",
    "__version__",
]

__version__ = "0.1.0"

_MODULES = {
    "AetherMindError": "aethermind.errors",
    "AsyncEngine": "aethermind.engine.serving.async_engine",
    "CompletionOutput": "aethermind.engine.requests.output",
    "EngineOptions": "aethermind.engine.config",
    "KVCache": "aethermind.cache.kv_cache",
    "LLM": "aethermind.llm",
    "Logprob": "aethermind.engine.requests.output",
    "RequestOptions": "aethermind.engine.requests.request",
    "RequestOutput": "aethermind.engine.requests.output",
    "Runtime": "aethermind.runtime",
    "SamplingParams": "aethermind.sampling.params",
    "SessionInfo": "aethermind.engine.requests.sessions",
    "StructuredOutputs": "aethermind.sampling.params",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import aethermind` alone is cheap."""
    from importlib import import_module

    if name in ("eager", "errors"):
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, for tab completion; most are imported on first use."""
    return sorted({*__all__, "eager", "errors"})
