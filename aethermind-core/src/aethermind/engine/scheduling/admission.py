"""Who comes in: waiting requests by the policy's order, as far as seats, tokens and blocks of the step go."""

from __future__ import annotations

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.cache.states import CacheState
from aethermind.engine.policies import SchedulingPolicy, SharingPolicy
from aethermind.engine.requests.request import Request, RequestState
from aethermind.engine.scheduling.decision import ScheduledRequest
from aethermind.engine.scheduling.giving_way import GivingWay
from aethermind.engine.scheduling.scheduling_step import SchedulingStep

__all__ = ["Admission"]


class Admission:
    """Moves requests from `waiting` to `running`.

    Where `swaps_beside_steps`, who is brought back from the swap space leaves that step to others.
    """

    __slots__ = ("_cache", "_giving_way", "_policy", "_sharing", "_swaps_beside_steps")

    def __init__(
        self, cache: KVCache, policy: SchedulingPolicy, giving_way: GivingWay, *, swaps_beside_steps: bool
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._sharing = policy if isinstance(policy, SharingPolicy) else None
        self._giving_way = giving_way
        self._swaps_beside_steps = swaps_beside_steps

    def admit(self, step: SchedulingStep, before: Request | None = None) -> None:
        """Let waiting requests in by the policy's order, and stop at the first that has to wait.

        With `before` only those that stand before it.
        """
        now, waiting, running, budget, decision = step
        cache = self._cache
        order = self._policy.order_key
        while step.chunk(1) and (request := waiting.first(now)) is not None:
            if before is not None and order(before, now) < order(request, now):
                break
            if len(running) >= budget.max_num_seqs and not self._take_seat(step, request):
                break
            num_tokens = request.num_tokens
            if num_tokens > cache.capacity_tokens:
                waiting.remove(request)
                self._giving_way.reject(step, request, num_tokens)
                continue
            num_blocks = cache.spec.num_blocks_for(num_tokens)
            cache.make_room(num_blocks)
            is_welcome = self._policy.admit(request, num_blocks, cache.num_available_blocks)
            if running and not (is_welcome and self._can_promise(step, request)):
                if self._take_seat(step, request):
                    continue
                break
            if request.needs_scores:
                decision.unscored = request
                break
            is_brought_back = cache.state(request.request_id) is CacheState.SWAPPED
            chunk = self._open(step, request)
            if chunk == 0 and running:
                break
            waiting.remove(request)
            if chunk == 0:
                self._giving_way.reject(step, request, num_tokens)
                continue
            request.state = RequestState.RUNNING
            if request.admitted is None:
                request.admitted = now
            request.num_tokens_at_resume = num_tokens
            running.append(request)
            if not (is_brought_back and self._swaps_beside_steps and decision.can_leave_out):
                is_last = request.num_computed_tokens + chunk == num_tokens
                decision.scheduled.append(ScheduledRequest(request, chunk, is_last))
                decision.num_batched_tokens += chunk
            if decision.preempted:  # who gave way comes back in a later step at the earliest
                break

    def giver(self, request: Request, running: list[Request], now: float) -> Request | None:
        """Who has to give way to a request that waits, where the policy shares."""
        if self._sharing is None:
            return None
        movable = [other for other in running if self._giving_way.rank(other, now)[0] and not other.is_just_resumed]
        return self._sharing.giver(request, running, movable)

    def _take_seat(self, step: SchedulingStep, request: Request) -> bool:
        """Make somebody give way to a request that waits, if the policy shares and somebody has to."""
        giver = self.giver(request, step.running, step.now) if step.budget.may_preempt else None
        if giver is None:
            return False
        self._giving_way.preempt(step, giver)
        return True

    def _can_promise(self, step: SchedulingStep, request: Request) -> bool:
        """Whether one that will never give way has room for all it may need, next to the others of its kind."""
        if self._giving_way.rank(request, step.now)[0]:
            return True
        num_blocks_for = self._cache.spec.num_blocks_for
        promised = [other for other in step.running if not self._giving_way.rank(other, step.now)[0]]
        num_blocks = sum(num_blocks_for(other.max_total_tokens) for other in [*promised, request])
        return not promised or num_blocks <= self._cache.pool.num_blocks

    def _open(self, step: SchedulingStep, request: Request) -> int:
        """Open or bring back a sequence, reserve its first chunk, return the chunk's tokens; 0 for lack of room."""
        cache, request_id = self._cache, request.request_id
        if cache.state(request_id) is CacheState.SWAPPED:
            if step.decision.copies:  # what comes back is written at once, maybe over what is still to be copied
                return 0
            if cache.spec.num_blocks_for(request.num_tokens) > cache.num_available_blocks:
                return 0
            cache.swap_in(request_id)
            chunk = step.chunk(request.num_missing_tokens)
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
            request.num_cached_tokens = min(opened.num_cached_tokens, request.num_prompt_tokens)
        return chunk
