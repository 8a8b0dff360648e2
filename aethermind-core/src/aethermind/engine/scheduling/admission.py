"""Admission of waiting requests in the policy's order, within the step's limits on sequences, tokens and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.reservations import reserve_chunk
from aethermind.cache.sequence import CacheState
from aethermind.engine.policies.base import SchedulingPolicy, SharingPolicy
from aethermind.engine.requests.request import Request, RequestState
from aethermind.engine.requests.sessions import Sessions
from aethermind.engine.scheduling.context_shift import ContextShift
from aethermind.engine.scheduling.decision import ScheduledRequest, SchedulingStep, StepBudget
from aethermind.engine.scheduling.preemption import Preemptor

__all__ = ["Admission", "ReservedShare"]


class Admission:
    """Moves requests from `waiting` to `running`.

    With `overlaps_swaps_with_steps`, a request that is swapped in by this step is computed from the next step on, if
    this step has other requests to compute.
    """

    __slots__ = (
        "_cache",
        "_context_shift",
        "_overlaps_swaps",
        "_policy",
        "_preemptor",
        "_sessions",
        "_sharing",
        "reserved",
    )

    def __init__(
        self,
        cache: KVCache,
        policy: SchedulingPolicy,
        sharing: SharingPolicy | None,
        preemptor: Preemptor,
        *,
        overlaps_swaps_with_steps: bool,
        context_shift: ContextShift | None,
        sessions: Sessions | None,
    ) -> None:
        """`sharing` is the policy as a `SharingPolicy`, None if it does not share."""
        self._cache = cache
        self._policy = policy
        self._sharing = sharing
        self._preemptor = preemptor
        self._overlaps_swaps = overlaps_swaps_with_steps
        self._context_shift = context_shift
        self._sessions = sessions
        self.reserved = ReservedShare(cache, policy)

    def admit(self, step: SchedulingStep, before: Request | None = None) -> None:
        """Admit waiting requests in the policy's order, until one has to wait.

        With `before`, only requests that precede it in that order are admitted.
        """
        now, waiting, running, budget, decision = step
        cache = self._cache
        order = self._policy.order_key
        while step.chunk(1) and (request := waiting.first(now)) is not None:
            if before is not None and order(before, now) < order(request, now):
                break
            num_tokens = request.num_kv_tokens
            if num_tokens > cache.capacity_tokens:
                waiting.remove(request)
                self._preemptor.reject(step, request, num_tokens)
                continue
            sessions = self._sessions if request.session else None
            if sessions is not None:
                sessions.touch(request.session)
            cache.swap_out_parked(cache.spec.num_blocks_for(num_tokens))
            victims = self.victims(request, running, budget, now)
            if victims is None:  # it has to wait
                break
            for victim in victims:
                self._preemptor.preempt(step, victim)
            if request.needs_prompt_logprobs:
                decision.pending_prompt_logprobs = request
                break
            is_swapped_in = cache.state(request.request_id) is CacheState.SWAPPED
            if sessions is not None and not is_swapped_in:
                if decision.copies and sessions.is_swapped(request):  # see `_open`
                    break
                sessions.resume(request)
            chunk = self._open(step, request)
            if chunk == 0 and running:
                break
            waiting.remove(request)
            if chunk == 0:
                self._preemptor.reject(step, request, num_tokens)
                continue
            request.state = RequestState.RUNNING
            if request.admitted is None:
                request.admitted = now
            request.num_tokens_at_resume = request.num_tokens
            running.append(request)
            if not (is_swapped_in and self._overlaps_swaps and decision.can_defer):
                is_last = chunk == request.num_uncomputed_tokens
                decision.scheduled.append(ScheduledRequest(request, chunk, is_last))
                decision.num_batched_tokens += chunk
            if decision.preempted:  # a preempted request is not admitted again in the same step
                break

    def victims(self, request: Request, running: list[Request], budget: StepBudget, now: float) -> list[Request] | None:
        """Return the running requests to preempt so that a waiting one can be admitted; None if it has to wait.

        Only a `SharingPolicy` preempts for a waiting request; with other policies the result is [] or None.
        """
        if running and not self._fits_at_max_length(request, running, now):
            return None
        max_num_seqs = max(budget.max_num_seqs, len(running))
        need = _BlockNeed(self._cache, request)
        remaining, victims = list(running), list[Request]()
        preemptible: list[Request] | None = None
        while remaining and not (
            self.reserved.num_slots(request, remaining, max_num_seqs) > 0
            and self.reserved.leaves_blocks(request, remaining)
            and self._policy.admit(request, *need.blocks)
        ):
            if self._sharing is None or not budget.may_preempt:
                return None
            if preemptible is None:
                preemptible = [
                    other for other in running if self._preemptor.rank(other, now)[0] and not other.is_just_resumed
                ]
                if not self._policy.admit(request, *need.upper_bound(preemptible)):
                    return None
            victim = self._sharing.choose_victim(request, remaining, preemptible)
            if victim is None:
                return None
            for group in (remaining, preemptible):
                group.remove(victim)
            need.release(victim)
            victims.append(victim)
        return victims

    def _fits_at_max_length(self, request: Request, running: list[Request], now: float) -> bool:
        """Whether this request fits, at its maximum length, beside all running ones that are exempt from preemption.

        True for a request that may be preempted.
        """
        if self._preemptor.rank(request, now)[0]:
            return True
        num_blocks_for = self._cache.spec.num_blocks_for
        exempt = [other for other in running if not self._preemptor.rank(other, now)[0]]
        num_blocks = sum(
            num_blocks_for(min(other.max_total_tokens, other.max_model_len)) for other in [*exempt, request]
        )
        return not exempt or num_blocks <= self._cache.pool.num_blocks

    def _open(self, step: SchedulingStep, request: Request) -> int:
        """Open or swap in a sequence and reserve its first chunk; returns the chunk's tokens, 0 if blocks are short."""
        cache, request_id = self._cache, request.request_id
        if cache.state(request_id) is CacheState.SWAPPED:
            if step.decision.copies:  # a swap-in writes at once, perhaps to blocks that pending copies read
                return 0
            if cache.spec.num_blocks_for(request.num_kv_tokens) > cache.num_available_blocks:
                return 0
            if cache.swap_in(request_id) is not CacheOutcome.OK:  # no state slot is free
                return 0
            if self._context_shift is not None:
                self._context_shift.apply(cache, request)
            chunk = step.chunk_of(request, request.num_computed_tokens, cache.chunk_alignment)
            result, chunk = reserve_chunk(cache, request_id, chunk)
            assert result.outcome is CacheOutcome.OK, f"request {request_id} was admitted, but no blocks are free"
            step.decision.add_block_ops(result)
            return chunk
        opened = cache.open(request_id, request.all_token_ids[: request.max_model_len], request.extra_key)
        assert opened.outcome is CacheOutcome.OK, f"request {request_id} cannot be opened: {opened.outcome.value}"
        chunk = step.chunk_of(request, opened.num_cached_tokens, cache.chunk_alignment)
        result, chunk = reserve_chunk(cache, request_id, chunk)
        if result.outcome is not CacheOutcome.OK:
            cache.release(request_id)
            return 0
        request.num_computed_tokens = opened.num_cached_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = min(opened.num_cached_tokens, request.num_prompt_tokens)
        return chunk


class _BlockNeed:
    """The number of blocks that a request needs for admission, and that are available, as victims are chosen."""

    __slots__ = ("_cache", "_num_available", "_num_users", "_num_wanted", "_shared")

    def __init__(self, cache: KVCache, request: Request) -> None:
        self._cache = cache
        self._num_available = cache.num_available_blocks
        self._num_wanted = cache.spec.num_blocks_for(request.num_kv_tokens)
        self._num_users: dict[int, int] = {}
        self._shared: frozenset[int] = frozenset()
        # Blocks of its prompt that other requests hold need no new block. To find them, the prompt is hashed.
        if self._num_wanted > self._num_available and cache.state(request.request_id) is CacheState.FREE:
            known = cache.match(request.all_token_ids, request.extra_key)
            self._shared = frozenset(block for block in known if not cache.pool.is_idle(block))
            self._num_wanted -= len(self._shared)

    @property
    def blocks(self) -> tuple[int, int]:
        """The number of blocks needed, and of those available."""
        return self._num_wanted, self._num_available

    def upper_bound(self, victims: list[Request]) -> tuple[int, int]:
        """Return `blocks` if all victims were preempted and shared no block: a cheap upper bound of those available."""
        num_blocks = sum(len(self._cache.held_blocks(victim.request_id)) for victim in victims)
        return self._num_wanted, self._num_available + num_blocks

    def release(self, victim: Request) -> None:
        """Count a request as preempted: its blocks that no other request holds become available."""
        for block in self._cache.held_blocks(victim.request_id):
            num_users = self._num_users.get(block, self._cache.pool.num_users(block)) - 1
            self._num_users[block] = num_users
            if num_users == 0:
                self._num_available += 1
                self._num_wanted += block in self._shared


class ReservedShare:
    """The sequences and blocks that a policy reserves for its most urgent requests (see `SchedulingPolicy`).

    A restricted request has to leave a share of the engine to others. Only admission is restricted: a running request
    may take blocks of the reserve as it grows. A restricted request is always admitted if no other one runs, so that a
    reserve never blocks the queue.
    """

    __slots__ = ("_cache", "_share_of")

    def __init__(self, cache: KVCache, policy: SchedulingPolicy) -> None:
        self._cache = cache
        self._share_of: Callable[[Request], float] | None = getattr(policy, "reserved_share", None)

    def num_slots(self, request: Request, running: Sequence[Request], max_num_seqs: int) -> int:
        """How many more sequences for `request` may run beside `running`: 0 or less for none."""
        num_free, share = max_num_seqs - len(running), self._share(request)
        if share == 0.0:
            return num_free
        num_usable = max(max_num_seqs - int(share * max_num_seqs), 1)
        return min(num_free, num_usable - len(self._restricted(running)))

    def leaves_blocks(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether restricted requests would leave the reserved blocks if `request` were admitted beside `running`.

        All tokens of the request count, also those that it may find in the prefix cache.
        """
        share = self._share(request)
        if share == 0.0 or not (others := self._restricted(running)):
            return True
        held = {block for other in others for block in self._cache.held_blocks(other.request_id)}
        num_blocks = self._cache.pool.num_blocks
        num_wanted = self._cache.spec.num_blocks_for(request.num_kv_tokens)
        return len(held) + num_wanted <= num_blocks - int(share * num_blocks)

    def _share(self, request: Request) -> float:
        return 0.0 if self._share_of is None else self._share_of(request)

    def _restricted(self, running: Sequence[Request]) -> list[Request]:
        """Return the running requests that have to leave a share."""
        return [other for other in running if self._share(other) > 0.0]
