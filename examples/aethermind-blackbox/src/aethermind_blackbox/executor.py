"""The executor: runs steps in this process and records each before it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from aethermind.engine.executors import CompiledModel, InlineExecutor, KVCache, ModelRunner, ScheduleDecision
from aethermind.graph import PlanExecutor
from aethermind_blackbox.recorder import Recorder, path

__all__ = ["BlackboxExecutor"]


class BlackboxExecutor(InlineExecutor):
    """The `inline` executor with a flight recorder."""

    def __init__(self, compiled: CompiledModel) -> None:
        super().__init__(compiled)
        self._recorder = Recorder(path())

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Load the weights; returns the runner, whose steps are recorded."""
        runner = super().load(cache, on_progress)
        runner.observer = self._record_step
        return runner

    def close(self) -> None:
        """Close the file and release the device."""
        super().close()
        self._recorder.close()

    def _record_step(self, executor: PlanExecutor, symbols: tuple[int, ...], decision: ScheduleDecision) -> None:
        """Run a step between two records; a step that never ends is in the file."""
        ids = " ".join(entry.request.request_id for entry in decision.scheduled)
        offset = self._recorder.begin(decision.num_batched_tokens, len(decision.copies), ids)
        started = time.perf_counter()
        executor.run(symbols)
        executor.synchronize()
        self._recorder.end(offset, time.perf_counter() - started)
