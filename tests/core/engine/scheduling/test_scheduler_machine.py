"""Scheduler under random load: blocks add up, budgets hold, order is kept, and all requests finish.

50 runs of 50 steps; `make nightly` makes 5,000 of 100.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.engine.loops import Loop, SwapBlocks, Swaps, next_token
from tests.scale import is_extended, scaled

from aethermind.cache import CacheState
from aethermind.engine.policies import (
    EarliestDeadline,
    FairShare,
    FirstComeFirstServed,
    PriorityWithAging,
    ShortestFirst,
)
from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.engine.scheduling.decision import StepBudget
from aethermind.engine.scheduling.preemption import MAX_PREEMPTIONS

VIP = -3
POLICIES = [
    FirstComeFirstServed(),
    PriorityWithAging(3.0, vip_priority=VIP),
    ShortestFirst(0.05, 0.1, 4.0),
    EarliestDeadline(9.0, 5.0),
    FairShare(2.0),
]
WINDOW_S = {
    "PriorityWithAging": 3.0 * 6,
    "ShortestFirst": 4.0 * (20 * 0.05 + 20 * 0.1),
    "EarliestDeadline": 30.0 + 5.0,
    "FairShare": 2.0 * 100,
}
"""How much later than a request another may arrive and still overtake it: the widest span of a policy's keys."""


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, lengths, aborts, limits and shortages over a small pool."""

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        policy=st.sampled_from(POLICIES),
        is_reusing=st.booleans(),
        swap_blocks=st.none() | st.integers(0, 12),
        is_forcing=st.booleans(),
        overlaps_swaps_with_steps=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_tokens: int,
        policy: Any,
        is_reusing: bool,
        swap_blocks: int | None,
        is_forcing: bool,
        overlaps_swaps_with_steps: bool,
    ) -> None:
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_seqs + spare_tokens}
        self.store = None if swap_blocks is None else SwapBlocks(swap_blocks)
        options: Any = {"is_reusing": is_reusing, "swap_store": self.store, "costs": Swaps(4) if self.store else None}
        options["overlaps_swaps_with_steps"] = overlaps_swaps_with_steps
        self.loop = Loop(num_blocks, block_size, policy, **options, **limits)
        self.loop.is_forcing = is_forcing
        self.policy = policy
        self.requests: list[Request] = []
        self.was_squeezed = False

    @rule(
        num_prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        priority=st.integers(VIP, 3),
        deadline_ms=st.none() | st.floats(100.0, 30_000.0),
        family=st.none() | st.integers(0, 1),
        tenant=st.sampled_from(["", "a", "b"]),
    )
    def arrive(self, num_prompt: int, max_tokens: int, family: int | None, **options: Any) -> None:
        self.requests.append(self.loop.add(num_prompt, max_tokens, family, **options))

    @rule(choice=st.integers(0, 100))
    @precondition(lambda self: any(not request.is_finished for request in self.requests))
    def abort(self, choice: int) -> None:
        alive = [request for request in self.requests if not request.is_finished]
        request = alive[choice % len(alive)]
        self.loop.scheduler.finish(request, FinishReason.ABORT, self.loop.waiting, self.loop.running)

    @rule(max_num_seqs=st.integers(1, 6), spare_tokens=st.integers(0, 12), chunk=st.none() | st.integers(1, 9))
    def adjust(self, max_num_seqs: int, spare_tokens: int, chunk: int | None) -> None:
        self.loop.budget = StepBudget(max_num_seqs, max_num_seqs + spare_tokens, chunk)

    @rule(num_blocks=st.integers(1, 6))
    def squeeze(self, num_blocks: int) -> None:
        """Somebody else takes free blocks and holds them for some steps."""
        self.unsqueeze()
        cache = self.loop.cache
        cache.open("session")
        num_blocks = min(num_blocks, cache.num_available_blocks)
        cache.reserve("session", min(num_blocks * cache.spec.block_size, cache.max_model_len))
        self.was_squeezed = True

    @rule()
    def unsqueeze(self) -> None:
        if self.loop.cache.state("session") is not CacheState.FREE:
            self.loop.cache.release("session")

    @rule(num_steps=st.integers(1, 6))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        loop, budget, now = self.loop, self.loop.budget, self.loop.now + 1.0
        running, waiting = list(loop.running), list(loop.waiting)
        decoding = {request for request in running if not request.is_prefilling}
        generated = {request: request.num_output_tokens for request in running}
        resumed = {request for request in running if request.is_just_resumed}
        decision = loop.step()
        scheduled = [entry.request for entry in decision.scheduled]

        counts = [entry.num_tokens for entry in decision.scheduled]
        assert decision.num_batched_tokens == sum(counts) <= budget.max_num_batched_tokens
        assert all(0 < count <= (budget.max_prefill_chunk or count) for count in counts)
        assert len(set(scheduled)) == len(scheduled)
        assert len(loop.running) <= max(budget.max_num_seqs, len(running))
        assert set(scheduled[: decision.num_decodes]) <= decoding, "decodes come first"
        assert not decoding & set(scheduled[decision.num_decodes :]) - set(decision.preempted)
        assert not set(decision.preempted) & set(scheduled)
        assert not (running or waiting) or scheduled or decision.rejected, "work to do, and nothing done"

        self.check_admissions(waiting, set(running), scheduled, decision.preempted, now)
        self.check_victims(decision.preempted, scheduled, resumed, generated, now)

    def check_admissions(
        self,
        waiting: list[Request],
        running: set[Request],
        scheduled: list[Request],
        victims: list[Request],
        now: float,
    ) -> None:
        """No request is admitted before one with a smaller key, so none is overtaken from too far behind."""
        scheduled = [request for request in scheduled if request not in running]
        # Whose blocks come back beside the step is let in, and computed in the next.
        brought_back = [request for request in self.loop.running if request in waiting and request not in scheduled]
        admitted = [*scheduled, *brought_back]
        if not isinstance(self.policy, FairShare):
            assert not (admitted and victims), "a new request never preempts another"
        for entered in (scheduled, brought_back):
            order = [self.policy.order_key(request, now) for request in entered]
            assert order == sorted(order)
        keys = [self.policy.order_key(request, now) for request in admitted]
        left = [request for request in waiting if request not in admitted and not request.is_finished]
        for request in left:
            assert all(key < self.policy.order_key(request, now) for key in keys)
            window = WINDOW_S.get(type(self.policy).__name__, 0.0)
            assert all(other.arrival <= request.arrival + window for other in admitted), "overtaken from too far behind"

    def check_victims(
        self,
        victims: list[Request],
        scheduled: list[Request],
        resumed: set[Request],
        generated: dict[Request, int],
        now: float,
    ) -> None:
        """A victim ranks behind all that go on, has made progress unless all waited, and is not preempted endlessly."""
        for victim in victims:
            assert victim.num_output_tokens == generated[victim]
            assert len(scheduled) <= 1 or victim not in resumed
            if not self.was_squeezed:  # the guarantee holds as long as no other user takes blocks
                assert victim.num_preemptions <= MAX_PREEMPTIONS
                assert self.policy.victim_key(victim, now) is not None
            assert scheduled or self.was_squeezed

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "requests"):
            return
        loop, cache = self.loop, self.loop.cache
        alive = [request for request in self.requests if not request.is_finished]
        assert len(loop.waiting) + len(loop.running) == len(alive) == len({*loop.waiting, *loop.running})
        swapped = {one.request_id for one in loop.waiting if cache.state(one.request_id) is CacheState.SWAPPED}
        assert swapped == set(self.store.held if self.store else ())
        has_session = cache.state("session") is not CacheState.FREE
        assert cache.num_sequences == len(loop.running) + len(swapped) + has_session
        open_ids = [request.request_id for request in loop.running] + ["session"] * has_session
        in_use = {block for name in open_ids for block in cache.block_table(name)}
        assert len(in_use) + cache.num_available_blocks == cache.pool.num_blocks
        for request in loop.running:
            assert request.state is RequestState.RUNNING
            assert cache.num_tokens(request.request_id) == request.num_computed_tokens < request.num_tokens
        for request in loop.waiting:
            assert request.state in (RequestState.WAITING, RequestState.PREEMPTED)
            assert (request.num_computed_tokens > 0) == (request.request_id in swapped)

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        self.unsqueeze()
        for _ in range(5000):
            if not self.loop.waiting and not self.loop.running:
                break
            self.step()
        assert all(request.is_finished for request in self.requests), "a request starves"
        assert self.loop.cache.num_available_blocks == self.loop.cache.pool.num_blocks
        for request in self.requests:
            assert request.all_token_ids == request.prompt_token_ids + request.output_token_ids
            for index in range(len(request.output_token_ids)):
                end = request.num_prompt_tokens + index
                assert request.all_token_ids[end] == next_token(request.all_token_ids[:end])
            if request.finish_reason is FinishReason.LENGTH:
                assert len(request.output_token_ids) == request.params.max_tokens


SchedulerMachine.TestCase.settings = settings(
    max_examples=scaled(5000), stateful_step_count=100 if is_extended() else 50, deadline=None
)
TestSchedulerMachine = SchedulerMachine.TestCase
