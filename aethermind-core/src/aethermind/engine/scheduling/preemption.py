"""Preemption when the cache is full: the request that is last in rank is swapped out, or recomputed later."""

from __future__ import annotations

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.reservations import reserve_chunk
from aethermind.engine.policies import SchedulingPolicy
from aethermind.engine.requests.request import Request, RequestState
from aethermind.engine.scheduling.decision import RejectedRequest, SchedulingStep
from aethermind.engine.scheduling.preemption_cost import PreemptionCosts

__all__ = ["MAX_PREEMPTIONS", "Preemptor"]

MAX_PREEMPTIONS = 4
"""How often a request may be preempted. After that it is exempt, and admitted only if its whole need fits."""


class Preemptor:
    """Frees blocks for one request by preempting requests of a later rank.

    A victim is swapped out if `costs` prefers that and the swap store has enough blocks, else it is recomputed later.
    Without `costs` it is always recomputed.
    """

    __slots__ = ("_cache", "_costs", "_policy")

    def __init__(self, cache: KVCache, policy: SchedulingPolicy, costs: PreemptionCosts | None) -> None:
        self._cache = cache
        self._policy = policy
        self._costs = costs

    def reserve_or_preempt(
        self, step: SchedulingStep, request: Request, num_tokens: int, *, is_last_resort: bool = False
    ) -> int:
        """Reserve slots for `num_tokens` tokens of `request`, or for a shorter chunk (`reserve_chunk`).

        If blocks are short, requests of a later rank are preempted, the last first. Returns the number of tokens. It is
        0 if there is no request to preempt, or the budget does not allow preemption: the request then keeps its blocks
        and skips the step. A request that runs alone, or has more tokens than the whole cache holds, could never
        continue, so it is rejected.
        """
        while True:
            result, num_reserved = reserve_chunk(self._cache, request.request_id, num_tokens)
            if result.outcome is CacheOutcome.OK:
                step.decision.add_block_ops(result)
                return num_reserved
            if not step.budget.may_preempt:
                return 0
            needed = request.num_computed_tokens - request.num_dropped_tokens + num_tokens
            can_never_fit = result.outcome is not CacheOutcome.NO_FREE_BLOCKS or needed > self._cache.capacity_tokens
            if can_never_fit or len(step.running) == 1:
                step.running.remove(request)
                self.reject(step, request, needed)
                return 0
            victim = self._victim(step, request, is_last_resort)
            if victim is None:
                return 0
            self.preempt(step, victim)

    def rank(self, request: Request, now: float) -> tuple[bool, tuple[float, float, str]]:
        """Return (may be preempted, the policy's key): the request with the greatest pair is preempted first."""
        key = self._policy.victim_key(request, now)
        if key is None or request.num_preemptions >= MAX_PREEMPTIONS:
            return False, self._policy.order_key(request, now) if key is None else key
        return True, key

    def preempt(self, step: SchedulingStep, victim: Request) -> None:
        """Move a running request back to `waiting`, and take it out of the decision."""
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
        had_block_ops = False
        if decision.copies or decision.shifts:
            had_block_ops = decision.remove_block_ops(frozenset(cache.held_blocks(victim.request_id)))
        if had_block_ops or not self._swap_out(victim):
            cache.release(victim.request_id, victim.all_token_ids)
            victim.num_computed_tokens = victim.num_dropped_tokens = 0
        victim.num_preemptions += 1
        victim.state = RequestState.PREEMPTED
        step.running.remove(victim)
        step.waiting.add(victim, step.now)
        decision.preempted.append(victim)

    def reject(self, step: SchedulingStep, request: Request, num_tokens: int) -> None:
        """End a request that needs more tokens of cache (`num_tokens`) than it can ever get."""
        cache = self._cache
        available = cache.num_available_blocks
        protected = cache.spec.num_tokens_in(sum(block.is_protected for block in cache.blocks()))
        cache.release(request.request_id)
        request.state = RequestState.FINISHED
        rejected = RejectedRequest(request, num_tokens, cache.capacity_tokens, available, protected)
        step.decision.rejected.append(rejected)

    def _victim(self, step: SchedulingStep, request: Request, is_last_resort: bool) -> Request | None:
        """Return the request of the last rank after `request`; None if there is none.

        Exempt requests and ones that were just resumed are chosen only as a last resort.
        """
        ranked = [(self.rank(other, step.now), other.is_just_resumed, other) for other in step.running]
        rank = self.rank(request, step.now)
        later = [entry for entry in ranked if entry[0] > rank and (is_last_resort or (entry[0][0] and not entry[1]))]
        return max(later, key=lambda entry: entry[0])[2] if later else None

    def _swap_out(self, victim: Request) -> bool:
        """Swap a request out if that is cheaper than to recompute it; returns whether it was swapped out."""
        if self._costs is None or victim.num_computed_tokens == 0:
            return False
        cache = self._cache
        spec, blocks = cache.spec, frozenset(cache.held_blocks(victim.request_id))
        # Blocks that other requests share need no recomputation: the prefix cache has them when the request resumes.
        known = cache.match(victim.all_token_ids, victim.extra_key)
        num_shared = sum(cache.pool.num_users(block) > (block in blocks) for block in known)
        num_tokens = victim.num_computed_tokens - num_shared * spec.block_size
        num_blocks = min(spec.num_blocks_for(victim.num_computed_tokens), len(blocks))
        num_bytes = num_blocks * spec.bytes_per_block + spec.bytes_per_slot
        if num_tokens <= 0 or not self._costs.prefers_swap(num_tokens, num_bytes):
            return False
        return cache.swap_out(victim.request_id) is CacheOutcome.OK
