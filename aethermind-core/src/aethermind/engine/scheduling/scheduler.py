"""Continuous batching: a step computes decodes first, then prefill chunks, then newly admitted requests.

The scheduler works on requests and on the cache's bookkeeping, without a device or a clock: the caller passes `now` and
the limits of the step. The caller owns the queues `waiting` and `running`; the scheduler moves requests between them
and reserves their KV slots. It is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.policies import FirstComeFirstServed
from aethermind.engine.policies.base import OrderKey, SchedulingPolicy, sharing_policy
from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.engine.requests.sessions import Sessions
from aethermind.engine.scheduling.admission import Admission
from aethermind.engine.scheduling.context_shift import ContextShift
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest, SchedulingStep, StepBudget
from aethermind.engine.scheduling.preemption import Preemptor
from aethermind.engine.scheduling.preemption_cost import PreemptionCosts

__all__ = ["Scheduler", "WaitingQueue", "publish_prefix", "schedule_lone_decode", "truncate_computed"]


_MAX_EXTENSION_TOKENS = 64
"""A decode of several tokens (an extension) has at most so many. A request with more, as after a preemption, counts as
a prefill.
"""


class Scheduler:
    """Continuous batching with chunked prefill over one KV cache.

    `Preemptor` preempts requests, with `costs` to choose between swapping and recomputation. `Admission` admits waiting
    requests; it describes `overlaps_swaps_with_steps`.
    """

    __slots__ = ("_admission", "_cache", "_context_shift", "_preemptor", "policy", "sharing")

    def __init__(
        self,
        cache: KVCache,
        policy: SchedulingPolicy | None = None,
        costs: PreemptionCosts | None = None,
        *,
        overlaps_swaps_with_steps: bool = False,
        context_shift: ContextShift | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._cache = cache
        self._context_shift = context_shift
        self.policy: SchedulingPolicy = FirstComeFirstServed() if policy is None else policy
        self.sharing = sharing_policy(self.policy)
        """The policy as a `SharingPolicy`, None if it does not share fairly between tenants; checked once, because the
        check is slow.
        """
        self._preemptor = Preemptor(cache, self.policy, costs)
        self._admission = Admission(
            cache,
            self.policy,
            self.sharing,
            self._preemptor,
            overlaps_swaps_with_steps=overlaps_swaps_with_steps,
            context_shift=context_shift,
            sessions=sessions,
        )

    def schedule(
        self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget
    ) -> ScheduleDecision:
        """Decide the next step and reserve its KV slots.

        Both queues are changed in place: admitted requests move from `waiting` to `running`, preempted ones back to
        `waiting`, rejected ones leave. Call `advance` after the step has run. A step is empty only if no request can
        run, if one was rejected, or if one waits for its prompt log probabilities.
        """
        decision = ScheduleDecision()
        scheduled = decision.scheduled
        reserve = self._cache.reserve
        max_tokens = budget.max_num_batched_tokens
        prefills: list[Request] = []
        extensions: list[Request] = []
        blocked: list[Request] = []
        if self._context_shift is not None:
            for request in running:
                self._context_shift.apply(self._cache, request)
        for request in running:
            num_uncomputed = (
                len(request.all_token_ids) - request.num_computed_tokens
            )  # `num_uncomputed_tokens`, inlined because this loop is hot
            if num_uncomputed > 1:
                is_decode = (
                    request.num_computed_tokens >= request.num_prompt_tokens and num_uncomputed <= _MAX_EXTENSION_TOKENS
                )
                (extensions if is_decode else prefills).append(request)
                continue
            if len(scheduled) == max_tokens:  # after the budget was lowered, the requests admitted last skip the step
                break
            result = reserve(request.request_id, 1)
            if result.outcome is CacheOutcome.OK:
                scheduled.append(ScheduledRequest(request, 1, True))
                if result.copies or result.shifts:
                    decision.add_block_ops(result)
            else:
                blocked.append(request)
        decision.num_batched_tokens = decision.num_decodes = len(scheduled)
        if budget.max_draft_tokens and not blocked:
            self._schedule_drafts(decision, budget, [*extensions, *prefills])
        if extensions:
            prefills[:0] = extensions if blocked else self._schedule_extensions(decision, budget, extensions)
        if blocked or prefills or waiting:
            step = SchedulingStep(now, waiting, running, budget, decision)
            if self.sharing is not None and not blocked:
                prefills.sort(key=lambda request: self.policy.order_key(request, now))
                if prefills:
                    self._admission.admit(step, prefills[0])
            is_short = self._schedule_prefills(step, blocked, prefills)
            if is_short and not scheduled and running and not decision.rejected:
                self._run_first_in_rank(step)
            if waiting and not is_short:
                self._admission.admit(step)
        return decision

    def runs_without_preemption(
        self, now: float, waiting: WaitingQueue, running: list[Request], budget: StepBudget
    ) -> bool:
        """Whether the next step surely needs no preemption and no context shift.

        Blocks are compared by an upper bound of those that the step takes.
        """
        if self._context_shift is not None and any(map(self._context_shift.is_due, running)):
            return False
        max_tokens, block_size = budget.max_num_batched_tokens, self._cache.spec.block_size
        num_blocks = 0
        for request in running:
            num_uncomputed = len(request.all_token_ids) - request.num_computed_tokens
            num_blocks += 1 if num_uncomputed <= 1 else 2 + min(num_uncomputed, max_tokens) // block_size
        if num_blocks * self._cache.num_groups > self._cache.num_available_blocks:
            return False
        first = waiting.first(now) if self.sharing is not None and waiting else None
        return first is None or not self._admission.victims(first, running, budget, now)

    def num_slots(self, request: Request, running: list[Request], budget: StepBudget) -> int:
        """Return how many more sequences like `request`, such as forks of it, the limits and the policy's
        reserve for urgent requests allow.
        """
        return self._admission.reserved.num_slots(request, running, budget.max_num_seqs)

    def advance(self, decision: ScheduleDecision) -> None:
        """Record that a step has run, so that its tokens are computed. Call this before appending sampled tokens."""
        commit = self._cache.commit
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens += num_tokens
            commit(request.request_id, num_tokens)

    def rollback(self, decision: ScheduleDecision) -> None:
        """Undo `advance` for a step that failed, whose tokens are to be computed again."""
        for request, num_tokens, _ in decision.scheduled:
            truncate_computed(self._cache, request, request.num_computed_tokens - num_tokens)

    def discard(self, decision: ScheduleDecision) -> None:
        """Reset the recurrent states of the requests of a failed step, because a repeated step would advance them
        twice.

        Their tokens after the last snapshot are computed again. Keys and values need no reset: they are overwritten.
        """
        if self._cache.is_recurrent:
            for request, _, _ in decision.scheduled:
                if request.state is RequestState.RUNNING:
                    request.num_computed_tokens = self._cache.restart(request.request_id)

    def finish(self, request: Request, reason: FinishReason, waiting: WaitingQueue, running: list[Request]) -> None:
        """End a request in any state, between steps, and release its blocks."""
        if request.state is RequestState.RUNNING:
            running.remove(request)
            self._cache.release(request.request_id, request.all_token_ids)
        elif request.state is not RequestState.FINISHED:
            if request in waiting:  # others wait outside the queue: for a KV store, or for the prompt of their group
                waiting.remove(request)
            self._cache.release(request.request_id)  # it holds blocks only if it was swapped out
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _schedule_drafts(self, decision: ScheduleDecision, budget: StepBudget, prefills: list[Request]) -> None:
        """Add draft tokens to decodes, within the limits of rows, free blocks, and tokens that no prefill takes.

        No request is preempted for a draft.
        """
        if not any(entry.request.draft_token_ids for entry in decision.scheduled):
            return
        num_wanted = sum(request.num_uncomputed_tokens for request in prefills)
        num_left = budget.max_num_batched_tokens - decision.num_batched_tokens - num_wanted
        num_left = min(num_left, budget.max_draft_tokens)
        decodes, verifications = [], []
        for entry in decision.scheduled:
            request, count = entry.request, min(len(entry.request.draft_token_ids), max(num_left, 0))
            if count and self._reserve_drafts(request.request_id, count):
                verifications.append(ScheduledRequest(request, 1 + count, True))
                num_left -= count
            else:
                decodes.append(entry)
        decision.scheduled[:] = decodes + verifications
        decision.num_decodes, decision.num_extensions = len(decodes), len(verifications)
        decision.num_batched_tokens = sum(entry.num_tokens for entry in decision.scheduled)

    def _reserve_drafts(self, request_id: str, num_drafts: int) -> bool:
        """Reserve slots for the drafts of a decode, and checkpoint its recurrent state in case a draft is wrong."""
        is_reserved = self._cache.reserve(request_id, 1 + num_drafts).outcome is CacheOutcome.OK
        return is_reserved and self._cache.checkpoint(request_id) is CacheOutcome.OK

    def _schedule_extensions(
        self, decision: ScheduleDecision, budget: StepBudget, extensions: list[Request]
    ) -> list[Request]:
        """Schedule decodes of several tokens, each with an equal share of the step's remaining tokens.

        Returns the requests that got no tokens or no slots; they are scheduled as prefills.
        """
        remaining = []
        num_left = budget.max_num_batched_tokens - decision.num_batched_tokens
        for index, request in enumerate(extensions):
            num_uncomputed = request.num_uncomputed_tokens
            count = min(
                num_uncomputed, num_left // (len(extensions) - index), budget.max_prefill_chunk or num_uncomputed
            )
            result = self._cache.reserve(request.request_id, count) if count > 0 else None
            if result is None or result.outcome is not CacheOutcome.OK:
                remaining.append(request)
                continue
            decision.scheduled.append(ScheduledRequest(request, count, count == num_uncomputed))
            decision.add_block_ops(result)
            decision.num_extensions += 1
            decision.num_batched_tokens += count
            num_left -= count
        return remaining

    def _schedule_prefills(self, step: SchedulingStep, blocked: list[Request], prefills: list[Request]) -> bool:
        """Schedule the decodes for which no slot was free, then prefill chunks; returns whether blocks were short."""
        decision = step.decision
        is_short = bool(blocked)
        for request in blocked:
            if (
                request.state is RequestState.RUNNING
                and step.chunk(1)
                and self._preemptor.reserve_or_preempt(step, request, 1)
            ):
                decision.scheduled.insert(decision.num_decodes, ScheduledRequest(request, 1, True))
                decision.num_decodes += 1
                decision.num_batched_tokens += 1
        for request in prefills:
            num_uncomputed = request.num_uncomputed_tokens
            chunk = step.chunk_of(request, request.num_computed_tokens, self._cache.chunk_alignment)
            if request.state is not RequestState.RUNNING or chunk == 0:
                continue
            if chunk := self._preemptor.reserve_or_preempt(step, request, chunk):
                decision.scheduled.append(ScheduledRequest(request, chunk, chunk == num_uncomputed))
                decision.num_batched_tokens += chunk
            else:
                is_short = True
        return is_short or bool(decision.preempted)

    def _run_first_in_rank(self, step: SchedulingStep) -> None:
        """Schedule the first request in rank if none got blocks; requests that were just resumed may be preempted for
        it.
        """
        request = min(step.running, key=lambda candidate: self._preemptor.rank(candidate, step.now))
        num_uncomputed = request.num_uncomputed_tokens
        chunk = step.chunk_of(request, request.num_computed_tokens, self._cache.chunk_alignment)
        if chunk := self._preemptor.reserve_or_preempt(step, request, chunk, is_last_resort=True):
            step.decision.scheduled.append(ScheduledRequest(request, chunk, chunk == num_uncomputed))
            step.decision.num_batched_tokens = chunk
            step.decision.num_decodes = int(num_uncomputed == 1)


class WaitingQueue:
    """A heap of requests in the policy's order. Adding costs O(log n), removing O(1). Not thread-safe.

    A key is computed when its request is added, and again when the request reaches the front. So keys may grow with
    time. A key must not shrink while its request waits: the queue would not notice.
    """

    __slots__ = ("_entry_numbers", "_heap", "_num_added", "_policy")

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[OrderKey, int, Request]] = []  # removed requests are dropped when they reach the front
        self._entry_numbers: dict[Request, int] = {}
        self._num_added = count()

    def __len__(self) -> int:
        return len(self._entry_numbers)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over all requests, in no particular order."""
        return iter(self._entry_numbers)

    def __contains__(self, request: object) -> bool:
        return request in self._entry_numbers

    def add(self, request: Request, now: float) -> None:
        """Add a request; `now` is in seconds of the engine's clock."""
        assert request not in self._entry_numbers, f"request {request.request_id} waits already"
        number = self._entry_numbers[request] = next(self._num_added)
        heappush(self._heap, (self._policy.order_key(request, now), number, request))

    def remove(self, request: Request) -> None:
        """Remove a request. Raises `KeyError` if it does not wait."""
        del self._entry_numbers[request]
        if len(self._heap) > 2 * len(self._entry_numbers) + 16:
            self._heap = [entry for entry in self._heap if self._entry_numbers.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def first(self, now: float) -> Request | None:
        """Return the request with the smallest key without removing it; None if the queue is empty."""
        heap = self._heap
        while heap:
            key, number, request = heap[0]
            if self._entry_numbers.get(request) != number:
                heappop(heap)
                continue
            current = self._policy.order_key(request, now)
            if current == key:
                return request
            heapreplace(heap, (current, number, request))
        return None


def truncate_computed(cache: KVCache, request: Request, num_tokens: int) -> None:
    """Reduce the computed tokens of a request to `num_tokens`, or to fewer if its cache has to restart it.

    A recurrent state is restored from a checkpoint or snapshot of at most `num_tokens` tokens.
    """
    num_dropped = request.num_dropped_tokens
    request.num_computed_tokens = cache.truncate_or_reset(request.request_id, num_tokens - num_dropped) + num_dropped


def schedule_lone_decode(cache: KVCache, waiting: WaitingQueue, running: list[Request]) -> ScheduleDecision | None:
    """Return the decision of a step in which one request decodes, with its slot reserved; a fast path of `schedule`.

    None if the scheduler has to decide: unless exactly one request runs, with one token to compute and no drafts to
    verify, no request waits, and a slot is free. Nothing is reserved then. Every decode step of a request that runs
    alone takes this path, so that a small model on a CPU spends little time on scheduling.
    """
    if len(running) != 1 or waiting:
        return None
    request = running[0]
    if len(request.all_token_ids) - request.num_computed_tokens != 1 or request.draft_token_ids:
        return None
    reserved = cache.reserve(request.request_id, 1)
    if reserved.outcome is not CacheOutcome.OK:
        return None
    decision = ScheduleDecision([ScheduledRequest(request, 1, True)], num_batched_tokens=1, num_decodes=1)
    decision.add_block_ops(reserved)
    return decision


def publish_prefix(cache: KVCache, decision: ScheduleDecision) -> None:
    """Publish the prompts that a step has computed to the prefix cache while their requests still run.

    A prompt that takes several steps is published when it is complete, and each time its computed length passes a power
    of two, because publishing hashes it from its beginning; with recurrent layers also at a quarter, a half and three
    quarters between two powers, because prefixes are shared up to snapshots only. If sliding windows free blocks, it is
    published after each step, because its next step may free blocks that another sequence could reuse. Outputs are
    published when requests end.
    """
    frees_blocks = cache.num_groups > 1
    num_bits = 3 if cache.is_recurrent else 1
    for request, num_tokens, _ in decision.scheduled:
        after = request.num_computed_tokens
        before = after - num_tokens
        is_complete = before < request.num_prompt_tokens <= after
        has_grown = after < request.num_prompt_tokens and _leading_bits(after, num_bits) != _leading_bits(
            before, num_bits
        )
        if is_complete or has_grown or (frees_blocks and before < request.num_prompt_tokens):
            cache.publish(request.request_id, request.all_token_ids)


def _leading_bits(number: int, count: int) -> int:
    """Return a number with all bits cleared but the leading `count`."""
    shift = max(number.bit_length() - count, 0)
    return number >> shift << shift
