"""Who comes in: waiting requests by the policy's order, as far as seats, tokens and blocks of the step go."""

from __future__ import annotations

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.cache.states import CacheState
from aethermind.engine.policies import SchedulingPolicy, SharingPolicy
from aethermind.engine.requests.request import Request, RequestState
from aethermind.engine.scheduling.decision import ScheduledRequest, StepBudget
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
            num_tokens = request.num_tokens
            if num_tokens > cache.capacity_tokens:
                waiting.remove(request)
                self._giving_way.reject(step, request, num_tokens)
                continue
            cache.make_room(cache.spec.num_blocks_for(num_tokens))
            givers = self.givers(request, running, budget, now)
            if givers is None:
                break
            for giver in givers:
                self._giving_way.preempt(step, giver)
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

    def givers(self, request: Request, running: list[Request], budget: StepBudget, now: float) -> list[Request] | None:
        """Who has to give way so that a request that waits can come in: mostly nobody, under a policy that shares maybe
        some. None where it has to wait, because even that would not do.
        """
        if running and not self._can_promise(request, running, now):
            return None
        most = max(budget.max_num_seqs, len(running))
        need = _Need(self._cache, request)
        remaining, givers = list(running), list[Request]()
        movable: list[Request] | None = None
        while remaining and not (len(remaining) < most and self._policy.admit(request, *need.blocks)):
            if self._sharing is None or not budget.may_preempt:
                return None
            if movable is None:
                movable = [one for one in running if self._giving_way.rank(one, now)[0] and not one.is_just_resumed]
                if not self._policy.admit(request, *need.at_best(movable)):
                    return None
            giver = self._sharing.giver(request, remaining, movable)
            if giver is None:
                return None
            for group in (remaining, movable):
                group.remove(giver)
            need.release(giver)
            givers.append(giver)
        return givers

    def _can_promise(self, request: Request, running: list[Request], now: float) -> bool:
        """Whether one that will never give way has room for all it may need, next to the others of its kind."""
        if self._giving_way.rank(request, now)[0]:
            return True
        num_blocks_for = self._cache.spec.num_blocks_for
        promised = [other for other in running if not self._giving_way.rank(other, now)[0]]
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


class _Need:
    """The blocks that a request takes when it is let in, and those available to it as others give way."""

    __slots__ = ("_cache", "_num_available", "_num_users", "_num_wanted", "_shared")

    def __init__(self, cache: KVCache, request: Request) -> None:
        self._cache = cache
        self._num_available = cache.num_available_blocks
        self._num_wanted = cache.spec.num_blocks_for(request.num_tokens)
        self._num_users: dict[int, int] = {}
        self._shared: frozenset[int] = frozenset()
        # What others hold of its prompt costs nothing. To find that out takes a hash of the prompt.
        if self._num_wanted > self._num_available and cache.state(request.request_id) is CacheState.FREE:
            known = cache.match(request.all_token_ids, request.extra_key)
            self._shared = frozenset(block for block in known if not cache.pool.is_idle(block))
            self._num_wanted -= len(self._shared)

    @property
    def blocks(self) -> tuple[int, int]:
        """How many it takes, and how many there are."""
        return self._num_wanted, self._num_available

    def at_best(self, givers: list[Request]) -> tuple[int, int]:
        """The same if all of these gave way and shared nothing: quick to say, and mostly enough to know better."""
        num_blocks = sum(len(self._cache.block_table(giver.request_id)) for giver in givers)
        return self._num_wanted, self._num_available + num_blocks

    def release(self, giver: Request) -> None:
        """As if one had given way: what nobody else holds becomes available."""
        for block in self._cache.block_table(giver.request_id):
            num_users = self._num_users.get(block, self._cache.pool.num_users(block)) - 1
            self._num_users[block] = num_users
            if num_users == 0:
                self._num_available += 1
                self._num_wanted += block in self._shared
