"""Steps one behind the other: while the device computes one, the host schedules and enqueues the next.

    host     schedule 2, enqueue | read 1, its answers grow | schedule 3, enqueue | read 2 …
    device   … step 1            | step 2                                         | step 3

What a step needs of the one before are the tokens that it goes on from, and those stay on the device. The host needs
their number only, and counts them before it knows them. Two things it cannot know: that a request ends with its token,
and what a request wants of its next one that depends on it. So a request may end while a step computes one token more
of it: that token is dropped, and its blocks stay taken until the step has run. Where the next step depends on more
than tokens' places it waits until the last one was read, as all steps do on a device that computes in the caller's
thread. (vLLM calls this asynchronous scheduling, SGLang an overlap scheduler.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from aethermind.engine.requests.request import RequestState
from aethermind.engine.scheduling.prompt_sharing import share_prompts
from aethermind.engine.steps.running_step import RunningStep

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
    from aethermind.engine.scheduling.preemption import MeasuredCosts
    from aethermind.engine.scheduling.scheduler import Scheduler
    from aethermind.engine.scheduling.waiting_queue import WaitingQueue
    from aethermind.engine.steps.model_runner import ModelRunner, SampledToken

__all__ = ["FinishedStep", "StepPipeline"]

_UNKNOWN = -1
"""Stands for a token that the device has and the host has not."""


class FinishedStep(NamedTuple):
    """What came of a step, and what was decided meanwhile."""

    decision: ScheduleDecision
    sampled: list[SampledToken]
    decisions: list[ScheduleDecision]
    """Those that were made since the last step was finished."""
    ended: float
    """When it was read, in seconds of the engine's clock."""


class StepPipeline:
    """The steps of an engine. `waiting` and `running` are its queues.

    With `runs_ahead`, which it has on an asynchronous device, a step may be under way between two calls.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        cache: KVCache,
        costs: MeasuredCosts,
        queues: tuple[WaitingQueue, list[Request]],
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._cache = cache
        self._costs = costs
        self._waiting, self._running = queues
        self._clock = clock
        self._ahead: RunningStep | None = None
        self._last_read = clock()
        self._decisions: list[ScheduleDecision] = []
        planned = runner.planned
        # Other ranks are told the inputs of a step as the host has them, tokens included.
        is_alone = planned.config.tensor_parallel_size == 1
        self.runs_ahead = is_alone and planned.open_device.backend.capabilities.is_asynchronous
        """Set it to False to have each step by itself; one that is under way is the last."""

    def step(self, budget: StepBudget, *, is_next_known: bool = True) -> FinishedStep:
        """Finish one step, with the next one on its way behind it where that is possible.

        `is_next_known` says that between this step and the next the caller will change nothing that runs. Where
        something fails, requests are as they were before the step that was to be finished, and none is under way.
        """
        if not self.runs_ahead and self._ahead is None:
            return self._step_alone(budget)
        step, self._ahead = self._ahead, None
        is_assumed = False
        try:
            if step is None:
                step = self._launch(budget)
            if is_next_known and self._may_run_ahead(step, budget):
                is_assumed = True
                with self._assumed(step):
                    if self._running:
                        self._ahead = self._launch(replace(budget, may_preempt=False), step)
            sampled = step.read()
        except BaseException:
            self._give_up(step, is_assumed=is_assumed)
            raise
        self._release(step)
        if not is_assumed:
            self._advance(step)
        share_prompts(self._cache, step.decision)
        sampled = [token for token in sampled if not token.request.is_finished]
        decisions, self._decisions = self._decisions, []
        return self._finished(step.decision, sampled, decisions, step.started)

    @property
    def is_deserted(self) -> bool:
        """Whether a step is under way all of whose requests have ended."""
        return self._ahead is not None and all(entry.request.is_finished for entry in self._ahead.decision.scheduled)

    def drain(self) -> None:
        """Wait for a deserted step."""
        step, self._ahead = self._ahead, None
        assert step is not None, "a step is under way"
        try:
            step.read()
        except BaseException:
            self._give_up(step, is_assumed=False)
            raise
        self._release(step)

    def keep_blocks(self, request: Request) -> None:
        """Call it before a request ends: what the step under way may write to stays taken until that has run."""
        if self._ahead is not None and request.state is RequestState.RUNNING:
            blocks = list(self._cache.block_table(request.request_id))
            for block in blocks:
                self._cache.pool.acquire(block)
            self._ahead.blocks += blocks

    def _may_run_ahead(self, step: RunningStep, budget: StepBudget) -> bool:
        """Whether the next step can be enqueued before the tokens of this one are read.

        Not where somebody looks at steps; where what is asked of a request's next token depends on the last one, as
        penalties, bad words, grammars and logits processors do (`SamplingParams.looks_back`); or where blocks or keys
        have to move, because somebody gives way, comes back or was shifted.
        """
        return (
            self.runs_ahead
            and step.token_ids is not None
            and not self._runner.is_watched
            and not self._cache.has_moved
            and self._cache.num_swapped_blocks == 0
            and self._scheduler.needs_no_victim(self._clock(), self._waiting, self._running, budget)
        )

    def _step_alone(self, budget: StepBudget) -> FinishedStep:
        """What is left of it where the device computes in the caller's thread."""
        started = self._clock()
        decision = self._scheduler.schedule(started, self._waiting, self._running, budget)
        sampled = self._runner.run(decision) if decision.scheduled else []
        self._scheduler.advance(decision)
        share_prompts(self._cache, decision)
        return self._finished(decision, sampled, [decision], started)

    def _launch(self, budget: StepBudget, before: RunningStep | None = None) -> RunningStep:
        started = self._clock()
        decision = self._scheduler.schedule(started, self._waiting, self._running, budget)
        self._decisions.append(decision)
        if not decision.scheduled:
            step = RunningStep(decision, (), list)
        elif self._runner.is_watched:
            sampled = self._runner.run(decision)
            step = RunningStep(decision, (), lambda: sampled)
        else:
            step = self._runner.launch(decision, before)
        step.started = started
        return step

    def _advance(self, step: RunningStep) -> None:
        """Record that a step has run, for all who have not ended since it was enqueued."""
        step.decision.scheduled = [entry for entry in step.decision.scheduled if not entry.request.is_finished]
        self._scheduler.advance(step.decision)

    @contextmanager
    def _assumed(self, step: RunningStep) -> Iterator[None]:
        """As if a step had been read: inside, its requests have tokens that nobody knows.

        Those that end with their token, because it is their last, do not run; who ends for another reason does.
        """
        self._advance(step)
        growing = [entry.request for entry in step.decision.scheduled if entry.needs_logits]
        ending = {request for request in growing if request.append_token(_UNKNOWN) is not None}
        if ending:
            self._running[:] = [request for request in self._running if request not in ending]
        try:
            yield
        finally:
            self._running.extend(request for request in growing if request in ending)
            for request in growing:
                request.all_token_ids.pop()
                request.output_token_ids.pop()

    def _finished(
        self, decision: ScheduleDecision, sampled: list[SampledToken], decisions: list[ScheduleDecision], started: float
    ) -> FinishedStep:
        began, self._last_read = max(started, self._last_read), self._clock()
        if decision.scheduled and decision.phase == "prefill":
            self._costs.observe_prefill(decision.num_batched_tokens, self._last_read - began)
        return FinishedStep(decision, sampled, decisions, self._last_read)

    def _release(self, step: RunningStep) -> None:
        for block in reversed(step.blocks):
            self._cache.pool.release(block)
        step.blocks.clear()

    def _give_up(self, step: RunningStep | None, *, is_assumed: bool) -> None:
        """Forget a step that failed, and the one behind it."""
        self._runner.wait()
        if step is not None and is_assumed:
            self._scheduler.take_back(step.decision)
        for one in (step, self._ahead):
            if one is not None:
                self._release(one)
        self._ahead = None
        self._decisions.clear()
