"""Who computes what in the next step: decodes first, then prefill chunks, then newcomers.

The scheduler knows requests and the cache's bookkeeping, no device and no clock: `now` is given, and so are the limits
of the step. It keeps no list of its own; it moves requests between the caller's `waiting` and `running`, and the
cache's reservations with them. The same calls lead to the same decisions.
"""

from __future__ import annotations

from typing import NamedTuple

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.cache.states import CacheState
from aethermind.engine.decision import RejectedRequest, ScheduleDecision, ScheduledRequest, StepBudget
from aethermind.engine.policies import FirstComeFirstServed, SchedulingPolicy, SharingPolicy
from aethermind.engine.preemption import PreemptionCosts
from aethermind.engine.request import FinishReason, Request, RequestState
from aethermind.engine.waiting_queue import WaitingQueue

__all__ = ["MAX_PREEMPTIONS", "Scheduler"]

MAX_PREEMPTIONS = 4
"""How often a request gives way. After that it is let in only where nobody will ever need its room."""

_MOST_EXTENDED = 64
"""Who has more tokens of its answer to compute, after a preemption or by force, is computed as prompts are."""


class _Step(NamedTuple):
    """What the slower ways through a step share."""

    now: float
    waiting: WaitingQueue
    running: list[Request]
    budget: StepBudget
    decision: ScheduleDecision

    def chunk(self, remaining: int) -> int:
        """How many of a prompt's `remaining` tokens the step can still take."""
        room = self.budget.max_num_batched_tokens - self.decision.num_batched_tokens
        return min(remaining, room, self.budget.max_prefill_chunk or remaining)


class Scheduler:
    """Continuous batching with chunked prefill over one KV cache.

    A victim gives way by swapping where `costs` prefers that and the cache has room outside, else by recomputation.
    Without `costs` it is always recomputed. Where `swaps_beside_steps`, who is brought back leaves that step to others.
    """

    __slots__ = ("_cache", "_costs", "_sharing", "policy", "swaps_beside_steps")

    def __init__(
        self, cache: KVCache, policy: SchedulingPolicy | None = None, costs: PreemptionCosts | None = None
    ) -> None:
        self._cache = cache
        self._costs = costs
        self.swaps_beside_steps = False
        self.policy: SchedulingPolicy = FirstComeFirstServed() if policy is None else policy
        self._sharing = policy if isinstance(policy, SharingPolicy) else None

    def schedule(
        self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget
    ) -> ScheduleDecision:
        """Decide the next step and reserve its KV slots.

        Both queues are changed in place: who is admitted moves from `waiting` to `running`, who is preempted goes back
        to `waiting`, who is rejected leaves. After the step has run, call `advance`. A step comes out empty only if
        nothing can run, or if a request was rejected.
        """
        decision = ScheduleDecision()
        scheduled = decision.scheduled
        reserve = self._cache.reserve
        most = budget.max_num_batched_tokens
        prefills: list[Request] = []
        extended: list[Request] = []
        starved: list[Request] = []
        for request in running:
            num_missing = len(request.all_token_ids) - request.num_computed_tokens
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
            step = _Step(now, waiting, running, budget, decision)
            if self._sharing is not None and not starved:
                prefills.sort(key=lambda request: self.policy.order_key(request, now))
                if prefills:
                    self._admit(step, prefills[0])
            is_short = self._continue(step, starved, prefills)
            if is_short and not scheduled and running and not decision.rejected:
                self._let_one_on(step)
            if waiting and not is_short:
                self._admit(step)
        return decision

    def needs_no_victim(self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget) -> bool:
        """Whether nobody has to give way in the next step, at a pessimistic guess of the room that it takes."""
        most, block_size = budget.max_num_batched_tokens, self._cache.spec.block_size
        num_blocks = 0
        for request in running:
            remaining = len(request.all_token_ids) - request.num_computed_tokens
            num_blocks += 1 if remaining <= 1 else 2 + min(remaining, most) // block_size
        if num_blocks > self._cache.num_available_blocks:
            return False
        first = waiting.first(now) if self._sharing is not None and waiting else None
        return first is None or self._giver(first, running, now) is None

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
        num_wanted = sum(len(request.all_token_ids) - request.num_computed_tokens for request in prefills)
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
            num_missing = len(request.all_token_ids) - request.num_computed_tokens
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

    # -- who runs already ------------------------------------------------------------------------------------

    def _continue(self, step: _Step, starved: list[Request], prefills: list[Request]) -> bool:
        """Schedule starved decodes, then prefill chunks. Return whether room was short for anybody."""
        decision = step.decision
        is_short = bool(starved)
        for request in starved:
            if request.state is RequestState.RUNNING and step.chunk(1) and self._make_room(step, request, 1):
                decision.scheduled.insert(decision.num_decodes, ScheduledRequest(request, 1, True))
                decision.num_decodes += 1
                decision.num_batched_tokens += 1
        for request in prefills:
            remaining = len(request.all_token_ids) - request.num_computed_tokens
            chunk = step.chunk(remaining)
            if request.state is not RequestState.RUNNING or chunk == 0:
                continue
            if self._make_room(step, request, chunk):
                decision.scheduled.append(ScheduledRequest(request, chunk, chunk == remaining))
                decision.num_batched_tokens += chunk
            else:
                is_short = True
        return is_short or bool(decision.preempted)

    def _let_one_on(self, step: _Step) -> None:
        """Where everybody waits for room, the first in rank takes it, also from those who were just resumed."""
        request = min(step.running, key=lambda candidate: self._rank(candidate, step.now))
        remaining = len(request.all_token_ids) - request.num_computed_tokens
        chunk = step.chunk(remaining)
        if self._make_room(step, request, chunk, is_last_resort=True):
            step.decision.scheduled.append(ScheduledRequest(request, chunk, chunk == remaining))
            step.decision.num_batched_tokens = chunk
            step.decision.num_decodes = int(remaining == 1)

    def _make_room(self, step: _Step, request: Request, num_tokens: int, *, is_last_resort: bool = False) -> bool:
        """Reserve, preempting those behind `request` in rank, the last first.

        Where there is nobody to preempt, it keeps its blocks and sits the step out: those before it go on, and take
        its room if they need it. Alone, or with more tokens than all blocks hold, it can never go on, and is rejected.
        Where the budget says that nobody gives way, it sits the step out as well.
        """
        while True:
            result = self._cache.reserve(request.request_id, num_tokens)
            if result.outcome is Outcome.OK:
                step.decision.prepare(result)
                return True
            if not step.budget.may_preempt:
                return False
            needed = request.num_computed_tokens + num_tokens
            is_hopeless = result.outcome is not Outcome.NO_ROOM or needed > self._cache.capacity_tokens
            if is_hopeless or len(step.running) == 1:
                step.running.remove(request)
                self._reject(step, request, needed)
                return False
            victim = self._victim(step, request, is_last_resort)
            if victim is None:
                return False
            self._preempt(step, victim)

    def _rank(self, request: Request, now: float) -> tuple[bool, tuple[float, float, str]]:
        """Who never gives way stands before all others; among equals the policy decides."""
        key = self.policy.victim_key(request, now)
        if key is None or request.num_preemptions >= MAX_PREEMPTIONS:
            return False, self.policy.order_key(request, now) if key is None else key
        return True, key

    def _victim(self, step: _Step, request: Request, is_last_resort: bool) -> Request | None:
        """Who of those behind `request` gives way next; as a last resort, also who otherwise would not."""
        ranked = [(self._rank(other, step.now), other.is_just_resumed, other) for other in step.running]
        own = self._rank(request, step.now)
        behind = [entry for entry in ranked if entry[0] > own and (is_last_resort or (entry[0][0] and not entry[1]))]
        return max(behind, key=lambda entry: entry[0])[2] if behind else None

    def _preempt(self, step: _Step, victim: Request) -> None:
        decision, cache = step.decision, self._cache
        for index, entry in enumerate(decision.scheduled):
            if entry.request is victim:
                del decision.scheduled[index]
                decision.num_batched_tokens -= entry.num_tokens
                if index < decision.num_decodes:
                    decision.num_decodes -= 1
                elif index < decision.num_decodes + decision.num_extensions:
                    decision.num_extensions -= 1
                break
        is_unprepared = False
        if decision.copies or decision.shifts:
            is_unprepared = decision.unprepare(frozenset(cache.block_table(victim.request_id)))
        if is_unprepared or not self._swap_out(victim):
            cache.release(victim.request_id, victim.all_token_ids)
            victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.state = RequestState.PREEMPTED
        step.running.remove(victim)
        step.waiting.add(victim, step.now)
        decision.preempted.append(victim)

    def _swap_out(self, victim: Request) -> bool:
        if self._costs is None or victim.num_computed_tokens == 0:
            return False
        spec = self._cache.spec
        num_bytes = spec.num_blocks_for(victim.num_computed_tokens) * spec.bytes_per_block
        if not self._costs.prefers_swap(victim.num_computed_tokens, num_bytes):
            return False
        return self._cache.swap_out(victim.request_id) is Outcome.OK

    # -- who comes in ----------------------------------------------------------------------------------------

    def _admit(self, step: _Step, before: Request | None = None) -> None:
        """Let waiting requests in by the policy's order, and stop at the first that has to wait.

        With `before` only those that stand before it.
        """
        now, waiting, running, budget, decision = step
        cache = self._cache
        order = self.policy.order_key
        while step.chunk(1) and (request := waiting.first(now)) is not None:
            if before is not None and order(before, now) < order(request, now):
                break
            if len(running) >= budget.max_num_seqs and not self._take_seat(step, request):
                break
            num_tokens = request.num_tokens
            if num_tokens > cache.capacity_tokens:
                waiting.remove(request)
                self._reject(step, request, num_tokens)
                continue
            num_blocks = cache.spec.num_blocks_for(num_tokens)
            cache.make_room(num_blocks)
            is_welcome = self.policy.admit(request, num_blocks, cache.num_available_blocks)
            if running and not (is_welcome and self._can_promise(step, request)):
                if self._take_seat(step, request):
                    continue
                break
            is_brought_back = cache.state(request.request_id) is CacheState.SWAPPED
            chunk = self._open(step, request)
            if chunk == 0 and running:
                break
            waiting.remove(request)
            if chunk == 0:
                self._reject(step, request, num_tokens)
                continue
            request.state = RequestState.RUNNING
            if request.admitted is None:
                request.admitted = now
            request.num_tokens_at_resume = num_tokens
            running.append(request)
            if not (is_brought_back and self.swaps_beside_steps and decision.can_leave_out):
                is_last = request.num_computed_tokens + chunk == num_tokens
                decision.scheduled.append(ScheduledRequest(request, chunk, is_last))
                decision.num_batched_tokens += chunk
            if decision.preempted:  # who gave way comes back in a later step at the earliest
                break

    def _take_seat(self, step: _Step, request: Request) -> bool:
        """Make somebody give way to a request that waits, if the policy shares and somebody has to."""
        giver = self._giver(request, step.running, step.now) if step.budget.may_preempt else None
        if giver is None:
            return False
        self._preempt(step, giver)
        return True

    def _giver(self, request: Request, running: list[Request], now: float) -> Request | None:
        """Who has to give way to a request that waits, where the policy shares."""
        if self._sharing is None:
            return None
        movable = [other for other in running if self._rank(other, now)[0] and not other.is_just_resumed]
        return self._sharing.giver(request, running, movable)

    def _can_promise(self, step: _Step, request: Request) -> bool:
        """Whether one that will never give way has room for all it may need, next to the others of its kind."""
        if self._rank(request, step.now)[0]:
            return True
        num_blocks_for = self._cache.spec.num_blocks_for
        promised = [other for other in step.running if not self._rank(other, step.now)[0]]
        num_blocks = sum(num_blocks_for(other.max_total_tokens) for other in [*promised, request])
        return not promised or num_blocks <= self._cache.pool.num_blocks

    def _open(self, step: _Step, request: Request) -> int:
        """Open or bring back a sequence, reserve its first chunk, return the chunk's tokens; 0 for lack of room."""
        cache, request_id = self._cache, request.request_id
        if cache.state(request_id) is CacheState.SWAPPED:
            if step.decision.copies:  # what comes back is written at once, maybe over what is still to be copied
                return 0
            if cache.spec.num_blocks_for(request.num_tokens) > cache.num_available_blocks:
                return 0
            cache.swap_in(request_id)
            chunk = step.chunk(request.num_tokens - request.num_computed_tokens)
            result = cache.reserve(request_id, chunk)
            assert result.outcome is Outcome.OK, f"request {request_id} has no room for what it was let in with"
            step.decision.prepare(result)
            return chunk
        opened = cache.open(request_id, request.all_token_ids, request.extra_key)
        assert opened.outcome is Outcome.OK, f"request {request_id} cannot be opened: {opened.outcome.value}"
        chunk = step.chunk(request.num_tokens - opened.num_cached_tokens)
        if cache.reserve(request_id, chunk).outcome is not Outcome.OK:
            cache.release(request_id)
            return 0
        request.num_computed_tokens = opened.num_cached_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = opened.num_cached_tokens
        return chunk

    def _reject(self, step: _Step, request: Request, num_tokens: int) -> None:
        available = self._cache.num_available_blocks
        self._cache.release(request.request_id)
        request.state = RequestState.FINISHED
        step.decision.rejected.append(RejectedRequest(request, num_tokens, self._cache.capacity_tokens, available))
