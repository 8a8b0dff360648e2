"""An engine on the simulated device whose steps, waits and blocks are watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aethermind import Runtime
from aethermind.cache import BlockPool
from aethermind.engine.engine import Engine
from aethermind.engine.parts import EngineParts
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.in_flight_step import InFlightStep
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.hal import Tensor
from aethermind_sim.streams import SimEvent, SimStream

__all__ = ["WatchedEngine", "open_watched"]


class WatchedPool(BlockPool):
    """Check that no freed block is written by a step in flight, and fill freed blocks with NaN."""

    __slots__ = ("engine", "num_freed", "written")

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.cache.pool.num_blocks)
        self.engine = engine
        self.written: list[set[int]] = []
        self.num_freed = 0

    def release(self, block: int) -> None:
        super().release(block)
        if self.ref_count(block) == 0:
            assert not any(block in blocks for blocks in self.written), f"a step under way writes to block {block}"
            self.num_freed += 1
            backend, memory = self.engine.compiled.open_device.backend, self.engine.runner.kv_memory
            memory.wait_for_swaps(lambda: {block})  # it may be being swapped out, so it is filled after that copy
            for tensor in memory.tensors.values():
                nbytes = tensor.nbytes // tensor.shape[0]
                row = Tensor.of(tensor.buffer, tensor.dtype, tensor.shape[1:], block * nbytes)
                backend.transfer.fill(row, 0xFF, backend.streams.default())


@dataclass
class WatchedEngine:
    """`log` lists events in order: ("enqueue", step), ("read", step), ("wait", reason)."""

    engine: Engine
    log: list[tuple[str, Any]] = field(default_factory=list)
    num_steps: int = 0
    num_sampled: int = 0

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Start watching. Waits are those for pending marks and for the engine's whole stream."""
        engine, log = self.engine, self.log
        launch, wait = engine.runner.launch, engine.runner.wait
        pool = engine.cache.pool
        synchronize, finish = SimEvent.synchronize, SimStream.synchronize

        def watched_launch(decision: ScheduleDecision, before: InFlightStep | None = None) -> InFlightStep:
            number, self.num_steps = self.num_steps, self.num_steps + 1
            self.num_sampled += sum(entry.needs_logits for entry in decision.scheduled)
            blocks = self._written(decision)
            log.append(("enqueue", number))
            step = launch(decision, before)
            read = step.read
            if isinstance(pool, WatchedPool):
                pool.written.append(blocks)

            def watched_read() -> list[SampledToken]:
                log.append(("read", number))
                sampled = read()
                if isinstance(pool, WatchedPool):
                    pool.written.remove(blocks)
                return sampled

            step.read = watched_read
            return step

        def watched_event(event: SimEvent) -> None:
            if event.latest is not None and not event.latest.is_reached:
                log.append(("wait", "event"))
            synchronize(event)

        def watched_stream(stream: SimStream) -> None:
            if stream is engine.compiled.open_device.backend.streams.default():
                log.append(("wait", "stream"))
            finish(stream)

        def watched_wait() -> None:
            wait()
            if isinstance(pool, WatchedPool):
                pool.written.clear()

        patch.setattr(engine.runner, "launch", watched_launch)
        patch.setattr(engine.runner, "wait", watched_wait)
        patch.setattr(SimEvent, "synchronize", watched_event)
        patch.setattr(SimStream, "synchronize", watched_stream)

    def things(self) -> list[tuple[str, int]]:
        """Enqueue and read events in order."""
        return [(what, number) for what, number in self.log if what != "wait"]

    def run(self, answers: dict[str, list[int]] | None = None) -> dict[str, list[int]]:
        """Step until all requests are finished; adds token ids by request to `answers`."""
        answers = {} if answers is None else answers
        while self.engine.has_unfinished:
            for output in self.engine.step():
                answers.update({output.request_id: output.outputs[0].token_ids})
        return answers

    def _written(self, decision: ScheduleDecision) -> set[int]:
        cache = self.engine.cache
        return {
            cache.slot(request.request_id, index) // cache.spec.block_size
            for request, count, _ in decision.scheduled
            for index in range(request.num_computed_tokens, request.num_computed_tokens + count)
        }


def open_watched(
    runtime: Runtime,
    model: Path,
    patch: pytest.MonkeyPatch,
    seed: int = 0,
    *,
    is_pool_watched: bool = True,
    **options: Any,
) -> WatchedEngine:
    """A small model on a device with this seed."""
    patch.setenv("AETHERMIND_SIM_SEED", str(seed))
    options = {"device": "sim", "dtype": "float32", "max_model_len": 48, "block_size": 4, **options}
    parts = EngineParts.of(runtime, str(model), **options)
    engine = Engine(parts, parts.compiled.source.tokenizer())
    if is_pool_watched and not parts.compiled.config.enable_prefix_caching:
        engine.cache._allocator.pool = WatchedPool(engine)
    watched = WatchedEngine(engine)
    watched.watch(patch)
    return watched
