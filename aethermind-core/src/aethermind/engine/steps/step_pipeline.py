"""Asynchronous scheduling: while the device computes a step, the host schedules and enqueues the next one.

    host     schedule 2, enqueue | read 1, append tokens    | schedule 3, enqueue | read 2 …
    device   … step 1            | step 2                                         | step 3

A step needs the tokens that the step before it samples; these are copied on the device. The host needs only their
number to schedule the next step, so it appends placeholders. It does not know yet whether a request ends with its
token. If it does, the next step has computed one token too many: that token is discarded, and the blocks of the request
are retained until the step has run. The token is also discarded, and computed again, if the last one was the trigger of
a structural tag, because it was sampled without the tag's constraint. A step that depends on the values of tokens waits
until the last step was read, as all steps do on a device that computes in the caller's thread. (vLLM: asynchronous
scheduling; SGLang: overlap scheduler.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from aethermind.engine.requests.request import RequestState
from aethermind.engine.scheduling.scheduler import publish_prefix, schedule_lone_decode, truncate_computed
from aethermind.engine.steps.batch import request_of
from aethermind.engine.steps.in_flight_step import InFlightStep
from aethermind.sampling.rows import is_in_tag

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
    from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts
    from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue
    from aethermind.engine.steps.batch import SampledRow
    from aethermind.engine.steps.model_runner import ModelRunner, SampledToken

__all__ = ["FinishedStep", "StepPipeline"]

_PLACEHOLDER_ID = -1
"""The token id of a token that is on the device and not yet on the host."""


class FinishedStep(NamedTuple):
    """The results of a step, and the decisions that were made since the previous one finished."""

    decision: ScheduleDecision
    sampled: list[SampledToken]
    decisions: list[ScheduleDecision]
    """All decisions since the last finished step: perhaps also that of the step that was enqueued after this one."""
    ended: float
    """When its tokens were read, in seconds of the engine's clock."""


class StepPipeline:
    """Runs the steps of an engine, whose queues are `waiting` and `running`.

    With `runs_ahead`, the default on an asynchronous device, a step may be in flight between two calls.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        cache: KVCache,
        costs: SwapVsRecomputeCosts,
        queues: tuple[WaitingQueue, list[Request]],
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._cache = cache
        self._costs = costs
        self._waiting, self._running = queues
        self._clock = clock
        self._in_flight: InFlightStep | None = None
        self._last_read = clock()
        self._decisions: list[ScheduleDecision] = []
        compiled = runner.compiled
        # Workers of other ranks get the inputs of a step from the host, so the host has to know the tokens.
        has_one_rank = compiled.config.tensor_parallel_size == 1
        self.runs_ahead = has_one_rank and compiled.open_device.backend.capabilities.is_asynchronous
        """Whether the next step is enqueued early. If it is set to False, a step in flight is still finished."""

    def step(self, budget: StepBudget, *, is_next_known: bool = True) -> FinishedStep:
        """Finish one step, after enqueueing the next one if that is possible.

        `is_next_known` means that the caller will not change running requests between this step and the next. After an
        error no step is in flight, and requests are as before the step that failed; those with a recurrent state
        compute tokens again (`Scheduler.discard`).
        """
        if not self.runs_ahead and self._in_flight is None:
            return self._step_synchronously(budget)
        step, self._in_flight = self._in_flight, None
        is_advanced = False
        try:
            if step is None:
                step = self._launch(budget)
            if is_next_known and self._may_run_ahead(step, budget):
                is_advanced = True
                with self._advanced_speculatively(step):
                    if self._running:
                        self._in_flight = self._launch(replace(budget, may_preempt=False), step)
            sampled = step.read()
        except BaseException:
            self._abandon(step, is_advanced=is_advanced)
            raise
        self._release(step)
        if not is_advanced:
            self._advance(step)
        publish_prefix(self._cache, step.decision)
        discarded = _sampled_without_tag(step)
        for request in discarded:
            if request.num_uncomputed_tokens == 0:  # otherwise forced tokens follow the trigger
                truncate_computed(self._cache, request, request.num_computed_tokens - 1)
        sampled = [token for token in sampled if not (token.request.is_finished or token.request in discarded)]
        decisions, self._decisions = self._decisions, []
        return self._finished(step.decision, sampled, decisions, step.started)

    @property
    def is_orphaned(self) -> bool:
        """Whether a step is in flight all of whose requests have ended."""
        return self._in_flight is not None and all(
            entry.request.is_finished for entry in self._in_flight.decision.scheduled
        )

    def drain(self) -> None:
        """Wait for an orphaned step and discard its tokens."""
        step, self._in_flight = self._in_flight, None
        assert step is not None, "a step is in flight"
        try:
            step.read()
        except BaseException:
            self._abandon(step, is_advanced=False)
            raise
        self._release(step)

    def retain_blocks(self, request: Request) -> None:
        """Retain the blocks that the step in flight may write to until it has run. Call this before a request ends."""
        if self._in_flight is not None and request.state is RequestState.RUNNING:
            blocks = list(self._cache.held_blocks(request.request_id))
            for block in blocks:
                self._cache.pool.acquire(block)
            self._in_flight.blocks += blocks

    def _may_run_ahead(self, step: InFlightStep, budget: StepBudget) -> bool:
        """Whether the next step can be enqueued before the tokens of this one are read.

        It cannot if steps are observed; if a request's next token depends on the value of the last one, as with
        penalties, bad words, grammars and logits processors (`SamplingParams.looks_back`); if a request's token will
        be discarded, or might have to be where the state of a recurrent layer cannot go back one token; or if blocks or
        keys have to move, because a request is preempted or swapped in, or because its positions were shifted.
        """
        return (
            self.runs_ahead
            and step.token_ids is not None
            and not self._runner.is_observed
            and not self._cache.has_moved_positions
            and not (self._cache.is_recurrent and any(map(_has_triggers, step.sampled)))
            and not _sampled_without_tag(step)
            and not (self._waiting and self._cache.num_swapped_blocks)
            and self._scheduler.runs_without_preemption(self._clock(), self._waiting, self._running, budget)
        )

    def _step_synchronously(self, budget: StepBudget) -> FinishedStep:
        """Run one step on a device that computes in the caller's thread."""
        started = self._clock()
        decision = self._schedule(started, budget)
        try:
            sampled = self._runner.run(decision) if decision.scheduled else []
        except BaseException:
            self._scheduler.discard(decision)
            raise
        self._scheduler.advance(decision)
        publish_prefix(self._cache, decision)
        return self._finished(decision, sampled, [decision], started)

    def _schedule(self, now: float, budget: StepBudget) -> ScheduleDecision:
        decision = schedule_lone_decode(self._cache, self._waiting, self._running)
        return decision or self._scheduler.schedule(now, self._waiting, self._running, budget)

    def _launch(self, budget: StepBudget, previous: InFlightStep | None = None) -> InFlightStep:
        started = self._clock()
        decision = self._schedule(started, budget)
        self._decisions.append(decision)
        if not decision.scheduled:
            step = InFlightStep(decision, (), list)
        elif self._runner.is_observed:
            sampled = self._runner.run(decision)
            step = InFlightStep(decision, (), lambda: sampled)
        else:
            step = self._runner.launch(decision, previous)
        step.ran_ahead = previous is not None
        step.started = started
        return step

    def _advance(self, step: InFlightStep) -> None:
        """Record that a step has run, for the requests that have not ended since it was enqueued."""
        step.decision.scheduled = [entry for entry in step.decision.scheduled if not entry.request.is_finished]
        self._scheduler.advance(step.decision)

    @contextmanager
    def _advanced_speculatively(self, step: InFlightStep) -> Iterator[None]:
        """Advance requests as if the step had been read, with placeholders for its tokens, within the block.

        Requests that end with this token by their length do not run within the block; requests that end by the token's
        value do.
        """
        self._advance(step)
        growing = [entry.request for entry in step.decision.scheduled if entry.needs_logits]
        ending = {request for request in growing if request.append_token(_PLACEHOLDER_ID) is not None}
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

    def _release(self, step: InFlightStep) -> None:
        for block in reversed(step.blocks):
            self._cache.pool.release(block)
        step.blocks.clear()

    def _abandon(self, step: InFlightStep | None, *, is_advanced: bool) -> None:
        """Discard a step that failed, and the one that was enqueued after it."""
        self._runner.wait()
        if step is not None and is_advanced:
            self._scheduler.rollback(step.decision)
        for in_flight in (step, self._in_flight):
            if in_flight is not None:
                self._scheduler.discard(in_flight.decision)
                self._release(in_flight)
        for decision in self._decisions:  # the last one may be of a step that could not be enqueued
            self._scheduler.discard(decision)
        self._in_flight = None
        self._decisions.clear()


def _has_triggers(row: SampledRow) -> bool:
    """Whether structural tags may begin in the output of a request."""
    structured_outputs = row.params.structured_outputs
    return structured_outputs is not None and structured_outputs.is_triggered


def _sampled_without_tag(step: InFlightStep) -> set[Request]:
    """Return the requests whose token of this step lacks a constraint: the token before it was an unknown trigger."""
    if not step.ran_ahead:
        return set()
    requests = {request_of(row) for row in step.sampled if not row.params.is_plain and _has_triggers(row)}
    return {request for request in requests if not request.is_finished and is_in_tag(request)}
