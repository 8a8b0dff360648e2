"""The executor: steps run in this process, and each is written down before it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from aethermind.engine.executors import (
    InlineExecutor,
    KVCache,
    ModelRunner,
    PlannedModel,
    SampledToken,
    ScheduleDecision,
)
from aethermind_blackbox.recorder import Recorder, path

__all__ = ["BlackboxExecutor"]


class BlackboxExecutor(InlineExecutor):
    """Like `inline`, with a recorder."""

    def __init__(self, planned: PlannedModel) -> None:
        super().__init__(planned)
        self._recorder = Recorder(path())

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights; returns the runner that the recorder watches."""
        runner = _WatchedRunner(self.planned, cache, self.kv_memory, on_progress)
        runner.recorder = self._recorder
        return runner

    def close(self) -> None:
        """Close the file and give the device back."""
        super().close()
        self._recorder.close()


class _WatchedRunner(ModelRunner):
    recorder: Recorder

    def run(self, decision: ScheduleDecision) -> list[SampledToken]:
        """Compute a step; one that never returns is in the file."""
        ids = " ".join(entry.request.request_id for entry in decision.scheduled)
        place = self.recorder.begin(decision.num_batched_tokens, len(decision.copies), ids)
        started = time.perf_counter()
        sampled = super().run(decision)
        self.recorder.end(place, time.perf_counter() - started)
        return sampled
