"""The interface of an executor, which runs a model's steps, and the executor of one device in the engine's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["Executor", "ExecutorFactory", "InlineExecutor"]


class Executor(Protocol):
    """Holds the device memory of one model and runs its steps; the engine manages requests, scheduling and blocks.

    The engine opens an executor, uses its `kv_memory`, and then loads the model. Every error is an AetherMindError; an
    error after which the executor cannot continue is an EngineDeadError.
    """

    kv_memory: KVMemory
    """The memory of the KV cache's blocks, with which the engine copies and swaps blocks between steps."""

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights and return the runner of steps; `cache` allocates the blocks that steps use.

        `on_progress(done, total)` counts constants.
        """

    def close(self) -> None:
        """Finish the device's work and release all resources."""


ExecutorFactory = Callable[["CompiledModel"], Executor]
"""Opens an executor for a compiled model; InvalidArgumentError for a model that it cannot run."""


class InlineExecutor:
    """Runs steps in the engine's process, by a `ModelRunner` that the engine calls directly."""

    def __init__(self, compiled: CompiledModel) -> None:
        """Allocate the memory of weights and KV cache. InvalidArgumentError for a model that is divided among ranks."""
        if compiled.parallel is not None:
            raise InvalidArgumentError(
                f"The executor {compiled.config.executor} runs one rank, and tensor_parallel_size is "
                f"{compiled.config.tensor_parallel_size}. Leave the executor out, or pass multiproc."
            )
        self.compiled = compiled
        self.kv_memory = KVMemory.of(compiled)
        self._constants = open_constants(compiled)
        self._constants.preallocate(compiled.step.plan)

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights."""
        return ModelRunner(self.compiled, cache, self.kv_memory, on_progress, self._constants)

    def close(self) -> None:
        """Finish the device's work and release all resources."""
        try:
            self._constants.finish()
        finally:
            self.compiled.open_device.backend.close()
