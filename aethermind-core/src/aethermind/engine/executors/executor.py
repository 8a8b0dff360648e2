"""What the engine asks of the place where a model's steps run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.engine.steps.model_runner import ModelRunner

__all__ = ["Executor", "ExecutorFactory"]


class Executor(Protocol):
    """Holds the device memory of one model and runs its steps. Requests, scheduling and blocks are the engine's.

    The engine opens one, takes its `kv_memory`, and then loads the model. Every error is an AetherMindError; one that
    ends the executor for good is an EngineDeadError.
    """

    kv_memory: KVMemory
    """What is behind the blocks of the KV cache; the engine copies and swaps blocks with it, between steps."""

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights; returns what runs the steps whose blocks `cache` hands out.

        `on_progress(done, total)` counts constants.
        """

    def close(self) -> None:
        """Finish the device's work and give everything back."""


ExecutorFactory = Callable[["PlannedModel"], Executor]
"""Opens an executor for a model that is planned; InvalidArgumentError for one that it cannot run."""
