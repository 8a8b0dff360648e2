"""Who computes what in the next step: decodes first, then prefill chunks, then newcomers.

The scheduler knows requests and the cache's bookkeeping, no device and no clock: `now` is given, and so are the limits
of the step. It keeps no list of its own; it moves requests between the caller's `waiting` and `running`, and the
cache's reservations with them. The same calls lead to the same decisions.
"""

from __future__ import annotations

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.engine.policies import FirstComeFirstServed, SchedulingPolicy, SharingPolicy
from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.engine.scheduling.admission import Admission
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest, StepBudget
from aethermind.engine.scheduling.giving_way import GivingWay
from aethermind.engine.scheduling.preemption import PreemptionCosts
from aethermind.engine.scheduling.scheduling_step import SchedulingStep
from aethermind.engine.scheduling.waiting_queue import WaitingQueue

__all__ = ["Scheduler"]

_MOST_EXTENDED = 64
"""Who has more tokens of its answer to compute, after a preemption or by force, is computed as prompts are."""


class Scheduler:
    """Continuous batching with chunked prefill over one KV cache.

    `GivingWay` says who makes room for whom, `Admission` who comes in; `costs` and `swaps_beside_steps` are theirs.
    """

    __slots__ = ("_admission", "_cache", "_giving_way", "is_sharing", "policy")

    def __init__(
        self,
        cache: KVCache,
        policy: SchedulingPolicy | None = None,
        costs: PreemptionCosts | None = None,
        *,
        swaps_beside_steps: bool = False,
    ) -> None:
        self._cache = cache
        self.policy: SchedulingPolicy = FirstComeFirstServed() if policy is None else policy
        self.is_sharing = isinstance(self.policy, SharingPolicy)
        """Whether the policy is a `SharingPolicy`, found out once: to ask takes as long as to queue a request."""
        self._giving_way = GivingWay(cache, self.policy, costs)
        self._admission = Admission(cache, self.policy, self._giving_way, swaps_beside_steps=swaps_beside_steps)

    def schedule(
        self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget
    ) -> ScheduleDecision:
        """Decide the next step and reserve its KV slots.

        Both queues are changed in place: who is admitted moves from `waiting` to `running`, who is preempted goes back
        to `waiting`, who is rejected leaves. After the step has run, call `advance`. A step comes out empty only if
        nothing can run, or if a request was rejected or is to be scored first.
        """
        decision = ScheduleDecision()
        scheduled = decision.scheduled
        reserve = self._cache.reserve
        most = budget.max_num_batched_tokens
        prefills: list[Request] = []
        extended: list[Request] = []
        starved: list[Request] = []
        for request in running:
            num_missing = len(request.all_token_ids) - request.num_computed_tokens  # a call for each would tell
            if num_missing > 1:
                is_decode = request.num_computed_tokens >= request.num_prompt_tokens and num_missing <= _MOST_EXTENDED
                (extended if is_decode else prefills).append(request)
                continue
            if len(scheduled) == most:  # more run than fit since the budget was lowered: the last in sit it out
                break
            result = reserve(request.request_id, 1)
            if result.outcome is Outcome.OK:
                scheduled.append(ScheduledRequest(request, 1, True))
                if result.copies or result.shifts:
                    decision.prepare(result)
            else:
                starved.append(request)
        decision.num_batched_tokens = decision.num_decodes = len(scheduled)
        if budget.max_draft_tokens and not starved:
            self._verify(decision, budget, [*extended, *prefills])
        if extended:
            prefills[:0] = extended if starved else self._extend(decision, budget, extended)
        if starved or prefills or waiting:
            step = SchedulingStep(now, waiting, running, budget, decision)
            if self.is_sharing and not starved:
                prefills.sort(key=lambda request: self.policy.order_key(request, now))
                if prefills:
                    self._admission.admit(step, prefills[0])
            is_short = self._continue(step, starved, prefills)
            if is_short and not scheduled and running and not decision.rejected:
                self._let_one_on(step)
            if waiting and not is_short:
                self._admission.admit(step)
        return decision

    def needs_no_victim(self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget) -> bool:
        """Whether nobody has to give way in the next step, at a pessimistic guess of the room that it takes."""
        most, block_size = budget.max_num_batched_tokens, self._cache.spec.block_size
        num_blocks = 0
        for request in running:
            num_missing = len(request.all_token_ids) - request.num_computed_tokens
            num_blocks += 1 if num_missing <= 1 else 2 + min(num_missing, most) // block_size
        if num_blocks > self._cache.num_available_blocks:
            return False
        first = waiting.first(now) if self.is_sharing and waiting else None
        return first is None or not self._admission.givers(first, running, budget, now)

    def advance(self, decision: ScheduleDecision) -> None:
        """Record that a step has run and its KV is in the cache. Call it before appending sampled tokens."""
        commit = self._cache.commit
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens += num_tokens
            commit(request.request_id, num_tokens)

    def take_back(self, decision: ScheduleDecision) -> None:
        """Undo `advance`, for a step that went wrong: its tokens are to be computed again."""
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens -= num_tokens
            self._cache.truncate(request.request_id, request.num_computed_tokens)

    def finish(self, request: Request, reason: FinishReason, waiting: WaitingQueue, running: list[Request]) -> None:
        """End a request wherever it is, between steps, and release its blocks."""
        if request.state is RequestState.RUNNING:
            running.remove(request)
            self._cache.release(request.request_id, request.all_token_ids)
        elif request.state is not RequestState.FINISHED:
            if request in waiting:  # others wait elsewhere: for a store, or for a sibling
                waiting.remove(request)
            self._cache.release(request.request_id)  # holds something only if it was swapped out
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _verify(self, decision: ScheduleDecision, budget: StepBudget, prefills: list[Request]) -> None:
        """Let decodes check their drafts, as far as rows, free blocks and tokens that no prompt wants go.

        Nobody gives way for a draft.
        """
        if not any(entry.request.draft_token_ids for entry in decision.scheduled):
            return
        num_wanted = sum(request.num_missing_tokens for request in prefills)
        room = budget.max_num_batched_tokens - decision.num_batched_tokens - num_wanted
        room = min(room, budget.max_draft_tokens)
        decodes, verifications = [], []
        for entry in decision.scheduled:
            request, count = entry.request, min(len(entry.request.draft_token_ids), max(room, 0))
            if count and self._cache.reserve(request.request_id, 1 + count).outcome is Outcome.OK:
                verifications.append(ScheduledRequest(request, 1 + count, True))
                room -= count
            else:
                decodes.append(entry)
        decision.scheduled[:] = decodes + verifications
        decision.num_decodes, decision.num_extensions = len(decodes), len(verifications)
        decision.num_batched_tokens = sum(entry.num_tokens for entry in decision.scheduled)

    def _extend(self, decision: ScheduleDecision, budget: StepBudget, extended: list[Request]) -> list[Request]:
        """Let those go on who have a few tokens to compute before their next, each with its part of the room.

        Returns those for whom there is none: they are continued as prompts are.
        """
        left = []
        room = budget.max_num_batched_tokens - decision.num_batched_tokens
        for index, request in enumerate(extended):
            num_missing = request.num_missing_tokens
            count = min(num_missing, room // (len(extended) - index), budget.max_prefill_chunk or num_missing)
            result = self._cache.reserve(request.request_id, count) if count > 0 else None
            if result is None or result.outcome is not Outcome.OK:
                left.append(request)
                continue
            decision.scheduled.append(ScheduledRequest(request, count, count == num_missing))
            decision.prepare(result)
            decision.num_extensions += 1
            decision.num_batched_tokens += count
            room -= count
        return left

    def _continue(self, step: SchedulingStep, starved: list[Request], prefills: list[Request]) -> bool:
        """Schedule starved decodes, then prefill chunks. Return whether room was short for anybody."""
        decision = step.decision
        is_short = bool(starved)
        for request in starved:
            if request.state is RequestState.RUNNING and step.chunk(1) and self._giving_way.make_room(step, request, 1):
                decision.scheduled.insert(decision.num_decodes, ScheduledRequest(request, 1, True))
                decision.num_decodes += 1
                decision.num_batched_tokens += 1
        for request in prefills:
            num_missing = request.num_missing_tokens
            chunk = step.chunk(num_missing)
            if request.state is not RequestState.RUNNING or chunk == 0:
                continue
            if self._giving_way.make_room(step, request, chunk):
                decision.scheduled.append(ScheduledRequest(request, chunk, chunk == num_missing))
                decision.num_batched_tokens += chunk
            else:
                is_short = True
        return is_short or bool(decision.preempted)

    def _let_one_on(self, step: SchedulingStep) -> None:
        """Where everybody waits for room, the first in rank takes it, also from those who were just resumed."""
        request = min(step.running, key=lambda candidate: self._giving_way.rank(candidate, step.now))
        num_missing = request.num_missing_tokens
        chunk = step.chunk(num_missing)
        if self._giving_way.make_room(step, request, chunk, is_last_resort=True):
            step.decision.scheduled.append(ScheduledRequest(request, chunk, chunk == num_missing))
            step.decision.num_batched_tokens = chunk
            step.decision.num_decodes = int(num_missing == 1)
