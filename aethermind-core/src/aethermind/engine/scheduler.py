"""Who computes what in the next step: decodes first, then prefill chunks, then newcomers.

The scheduler knows requests and the cache's bookkeeping, no device and no clock: `now` is given. It keeps no
list of its own; it moves requests between the caller's `waiting` and `running`, and the cache's reservations
with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import Outcome
from aethermind.engine.policies import FirstComeFirstServed, SchedulingPolicy
from aethermind.engine.request import FinishReason, Request, RequestState
from aethermind.errors import InvalidArgumentError

__all__ = ["RejectedRequest", "ScheduleDecision", "ScheduledRequest", "Scheduler", "SchedulerConfig"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step. Raises `InvalidArgumentError` where they leave a running request without a token."""

    max_num_seqs: int = 64
    """The most requests running at once."""
    max_num_batched_tokens: int = 512
    """The most tokens computed in a step; also the largest prefill chunk."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise InvalidArgumentError(f"max_num_seqs is {self.max_num_seqs} but must be an integer of 1 or more.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidArgumentError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} but must be at least max_num_seqs "
                f"({self.max_num_seqs}), a token for each running request; raise it or lower max_num_seqs."
            )


class ScheduledRequest(NamedTuple):
    """One request's share of a step: its next `num_tokens` tokens, and whether one is sampled from them."""

    request: Request
    num_tokens: int
    needs_logits: bool


class RejectedRequest(NamedTuple):
    """A request that cannot be served even alone, with the numbers that say so."""

    request: Request
    num_tokens: int
    """Tokens whose KV would have to be in the cache."""
    capacity_tokens: int
    """Tokens that fit when a sequence has the whole cache."""
    num_available_blocks: int
    """Blocks there were when it was refused."""


@dataclass(slots=True)
class ScheduleDecision:
    """What the next step computes. The scheduler fills it in; everybody else reads."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    """Decodes first, then prefill chunks, newcomers last."""
    preempted: list[Request] = field(default_factory=list)
    """Moved back to the front of `waiting`, their blocks released."""
    rejected: list[RejectedRequest] = field(default_factory=list)
    """Taken from both lists, their blocks released; the caller finishes them with an error."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """`(source, destination)` blocks to copy, in order, before the step runs."""
    num_batched_tokens: int = 0
    """Tokens of the step."""
    num_decodes: int = 0
    """How many leading entries of `scheduled` are decodes of one token."""

    @property
    def phase(self) -> str:
        """`prefill` where no entry is a decode, `decode` where all are, else `mixed`."""
        if self.num_decodes == 0:
            return "prefill"
        return "decode" if self.num_decodes == len(self.scheduled) else "mixed"


class _Step(NamedTuple):
    """What the slower ways through a step share."""

    now: float
    waiting: list[Request]
    running: list[Request]
    decision: ScheduleDecision


class Scheduler:
    """Continuous batching with chunked prefill over one KV cache; preemption recomputes."""

    __slots__ = ("_cache", "_policy", "config")

    def __init__(self, config: SchedulerConfig, cache: KVCache, policy: SchedulingPolicy | None = None) -> None:
        self.config = config
        self._cache = cache
        self._policy: SchedulingPolicy = FirstComeFirstServed() if policy is None else policy

    def schedule(self, now: float, waiting: list[Request], running: list[Request]) -> ScheduleDecision:
        """Decide the next step and reserve its KV slots.

        Both lists are changed in place: who is admitted moves from `waiting` to `running`, who is preempted
        goes to the front of `waiting`, who is rejected leaves. After the step has run, call `advance`. A step
        comes out empty only if nothing can run, or if a request was rejected.
        """
        decision = ScheduleDecision()
        scheduled = decision.scheduled
        reserve = self._cache.reserve
        prefills: list[Request] = []
        starved: list[Request] = []
        for request in running:
            if len(request.all_token_ids) - request.num_computed_tokens > 1:
                prefills.append(request)
                continue
            result = reserve(request.request_id, 1)
            if result.outcome is Outcome.OK:
                scheduled.append(ScheduledRequest(request, 1, True))
                if result.copies:
                    decision.copies.extend(result.copies)
            else:
                starved.append(request)
        decision.num_batched_tokens = decision.num_decodes = len(scheduled)
        if starved or prefills or waiting:
            step = _Step(now, waiting, running, decision)
            is_short = self._continue(step, starved, prefills)
            if waiting and not is_short:
                self._admit(step)
        return decision

    def advance(self, decision: ScheduleDecision) -> None:
        """Record that a step has run and its KV is in the cache. Call it before appending sampled tokens."""
        commit = self._cache.commit
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens += num_tokens
            commit(request.request_id, num_tokens)

    def finish(self, request: Request, reason: FinishReason, waiting: list[Request], running: list[Request]) -> None:
        """End a request wherever it is, between steps, and release its blocks."""
        if request.state is RequestState.RUNNING:
            running.remove(request)
            self._cache.release(request.request_id, request.all_token_ids)
        elif request.state is not RequestState.FINISHED:
            waiting.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _continue(self, step: _Step, starved: list[Request], prefills: list[Request]) -> bool:
        """Schedule starved decodes, then prefill chunks. Return whether room was short for anybody."""
        decision = step.decision
        is_short = bool(starved)
        for request in starved:
            if request.state is RequestState.RUNNING and self._make_room(step, request, 1):
                decision.scheduled.append(ScheduledRequest(request, 1, True))
                decision.num_decodes += 1
                decision.num_batched_tokens += 1
        for request in prefills:
            remaining = len(request.all_token_ids) - request.num_computed_tokens
            chunk = min(remaining, self.config.max_num_batched_tokens - decision.num_batched_tokens)
            if request.state is not RequestState.RUNNING or chunk == 0:
                continue
            if self._make_room(step, request, chunk):
                decision.scheduled.append(ScheduledRequest(request, chunk, chunk == remaining))
                decision.num_batched_tokens += chunk
            else:
                is_short = True
        return is_short or bool(decision.preempted)

    def _make_room(self, step: _Step, request: Request, num_tokens: int) -> bool:
        """Reserve, preempting those who come after `request` in the victim order.

        A request that is itself the last in that order keeps its blocks and sits the step out: those before
        it go on, and take its room if they need it. Alone, it can never go on, and is rejected.
        """
        while True:
            result = self._cache.reserve(request.request_id, num_tokens)
            if result.outcome is Outcome.OK:
                step.decision.copies.extend(result.copies)
                return True
            if result.outcome is not Outcome.NO_ROOM or len(step.running) == 1:
                step.running.remove(request)
                self._reject(step, request, request.num_computed_tokens + num_tokens)
                return False
            victim = max(step.running, key=lambda candidate: self._policy.victim_key(candidate, step.now))
            if victim is request:
                return False
            self._preempt(step, victim)

    def _preempt(self, step: _Step, victim: Request) -> None:
        decision = step.decision
        for index, entry in enumerate(decision.scheduled):
            if entry.request is victim:
                del decision.scheduled[index]
                decision.num_batched_tokens -= entry.num_tokens
                decision.num_decodes -= index < decision.num_decodes
                break
        if decision.copies:
            blocks = frozenset(self._cache.block_table(victim.request_id))
            decision.copies[:] = [copy for copy in decision.copies if copy[1] not in blocks]
        self._cache.release(victim.request_id, victim.all_token_ids)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.state = RequestState.PREEMPTED
        step.running.remove(victim)
        step.waiting.insert(0, victim)
        decision.preempted.append(victim)

    def _admit(self, step: _Step) -> None:
        """Let waiting requests in by the policy's order, and stop at the first that has to wait."""
        _, waiting, running, decision = step
        cache, policy = self._cache, self._policy
        num_seats = self.config.max_num_seqs - len(running)
        budget = self.config.max_num_batched_tokens - decision.num_batched_tokens
        if num_seats <= 0 or budget <= 0:
            return
        if len(waiting) > 1:
            waiting.sort(key=lambda request: policy.order_key(request, step.now))
        num_taken = 0
        for request in waiting:
            num_tokens = request.num_tokens
            if num_tokens > cache.capacity_tokens:
                self._reject(step, request, num_tokens)
                num_taken += 1
                continue
            if num_seats == 0 or budget == 0:
                break
            num_blocks = cache.spec.num_blocks_for(num_tokens)
            if running and not policy.admit(request, num_blocks, cache.num_available_blocks):
                break
            chunk = self._open(request, budget)
            if chunk > 0:
                request.state = RequestState.RUNNING
                running.append(request)
                is_last = request.num_computed_tokens + chunk == num_tokens
                decision.scheduled.append(ScheduledRequest(request, chunk, is_last))
                decision.num_batched_tokens += chunk
                budget -= chunk
                num_seats -= 1
            elif running:
                break
            else:
                self._reject(step, request, num_tokens)
            num_taken += 1
        del waiting[:num_taken]

    def _open(self, request: Request, budget: int) -> int:
        """Open a sequence, reserve its first chunk, return the chunk's tokens; 0 for lack of room."""
        opened = self._cache.open(request.request_id, request.all_token_ids, request.extra_key)
        assert opened.outcome is Outcome.OK, f"request {request.request_id} cannot be opened: {opened.outcome.value}"
        chunk = min(request.num_tokens - opened.num_cached_tokens, budget)
        if self._cache.reserve(request.request_id, chunk).outcome is not Outcome.OK:
            self._cache.release(request.request_id)
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
