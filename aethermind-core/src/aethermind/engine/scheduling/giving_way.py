"""Who gives way in a full cache, and how: the last in rank, by swapping or by recomputation."""

from __future__ import annotations

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.engine.policies import SchedulingPolicy
from aethermind.engine.requests.request import Request, RequestState
from aethermind.engine.scheduling.decision import RejectedRequest
from aethermind.engine.scheduling.preemption import PreemptionCosts
from aethermind.engine.scheduling.scheduling_step import SchedulingStep

__all__ = ["GivingWay", "MAX_PREEMPTIONS"]

MAX_PREEMPTIONS = 4
"""How often a request gives way. After that it is let in only where nobody will ever need its room."""


class GivingWay:
    """Makes room for one request at the expense of those behind it.

    A victim gives way by swapping where `costs` prefers that and the cache has room outside, else by recomputation.
    Without `costs` it is always recomputed.
    """

    __slots__ = ("_cache", "_costs", "_policy")

    def __init__(self, cache: KVCache, policy: SchedulingPolicy, costs: PreemptionCosts | None) -> None:
        self._cache = cache
        self._policy = policy
        self._costs = costs

    def make_room(
        self, step: SchedulingStep, request: Request, num_tokens: int, *, is_last_resort: bool = False
    ) -> bool:
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
                self.reject(step, request, needed)
                return False
            victim = self._victim(step, request, is_last_resort)
            if victim is None:
                return False
            self.preempt(step, victim)

    def rank(self, request: Request, now: float) -> tuple[bool, tuple[float, float, str]]:
        """Who never gives way stands before all others; among equals the policy decides."""
        key = self._policy.victim_key(request, now)
        if key is None or request.num_preemptions >= MAX_PREEMPTIONS:
            return False, self._policy.order_key(request, now) if key is None else key
        return True, key

    def preempt(self, step: SchedulingStep, victim: Request) -> None:
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

    def reject(self, step: SchedulingStep, request: Request, num_tokens: int) -> None:
        available = self._cache.num_available_blocks
        self._cache.release(request.request_id)
        request.state = RequestState.FINISHED
        step.decision.rejected.append(RejectedRequest(request, num_tokens, self._cache.capacity_tokens, available))

    def _victim(self, step: SchedulingStep, request: Request, is_last_resort: bool) -> Request | None:
        """Who of those behind `request` gives way next; as a last resort, also who otherwise would not."""
        ranked = [(self.rank(other, step.now), other.is_just_resumed, other) for other in step.running]
        own = self.rank(request, step.now)
        behind = [entry for entry in ranked if entry[0] > own and (is_last_resort or (entry[0][0] and not entry[1]))]
        return max(behind, key=lambda entry: entry[0])[2] if behind else None

    def _swap_out(self, victim: Request) -> bool:
        if self._costs is None or victim.num_computed_tokens == 0:
            return False
        cache = self._cache
        spec, own = cache.spec, frozenset(cache.block_table(victim.request_id))
        # What others hold of it is found again, and shared again; what comes back from the swap space is its alone.
        known = cache.match(victim.all_token_ids, victim.extra_key)
        num_shared = sum(cache.pool.num_users(block) > (block in own) for block in known)
        num_tokens = victim.num_computed_tokens - num_shared * spec.block_size
        num_bytes = spec.num_blocks_for(victim.num_computed_tokens) * spec.bytes_per_block
        if num_tokens <= 0 or not self._costs.prefers_swap(num_tokens, num_bytes):
            return False
        return cache.swap_out(victim.request_id) is Outcome.OK
