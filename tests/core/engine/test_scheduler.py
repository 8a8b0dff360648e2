"""Scheduler: who is computed when, who gives way, and that everybody finishes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aethermind.cache import BlockPool, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.engine.policies import FirstComeFirstServed, PriorityWithAging
from aethermind.engine.request import FinishReason, Request, RequestState
from aethermind.engine.scheduler import ScheduleDecision, Scheduler, SchedulerConfig
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams

MAX_MODEL_LEN = 64


def next_token(tokens: list[int]) -> int:
    """A stand-in for a model: the next token depends on all that precede it."""
    return hash(tuple(tokens)) % 1000


class Loop:
    """The engine's step, reduced to the scheduler, the cache's bookkeeping and a stand-in for the model."""

    def __init__(
        self, num_blocks: int = 100, block_size: int = 4, policy: Any = None, *, is_reusing: bool = False, **limits: int
    ) -> None:
        spec, pool = KVCacheSpec(1, 1, 8, "float32", block_size), BlockPool(num_blocks)
        prefix_cache = HashedPrefixCache(pool, block_size) if is_reusing else None
        self.cache = KVCache(spec, num_blocks, MAX_MODEL_LEN, prefix_cache=prefix_cache, pool=pool)
        self.scheduler = Scheduler(SchedulerConfig(**limits), self.cache, policy)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self.now = 0.0
        self.num_requests = 0

    def add(self, num_prompt: int, max_tokens: int = 4, priority: int = 0, family: int | None = None) -> Request:
        """Queue a request; prompts of one family begin alike."""
        self.num_requests += 1
        self.now += 1.0
        prompt = [(self.num_requests if family is None else -family) * 1000 + index for index in range(num_prompt)]
        params = SamplingParams(max_tokens=max_tokens)
        name = f"r{self.num_requests:04}"
        request = Request(name, prompt, params, self.now, max_model_len=MAX_MODEL_LEN, priority=priority)
        self.waiting.append(request)
        return request

    def admit_by_hand(self, request: Request) -> Request:
        """Let a request in past the scheduler, to set up an order that admission rarely produces."""
        self.waiting.remove(request)
        self.running.append(request)
        self.cache.open(request.request_id)
        request.state = RequestState.RUNNING
        return request

    def schedule(self) -> ScheduleDecision:
        self.now += 1.0
        return self.scheduler.schedule(self.now, self.waiting, self.running)

    def step(self) -> ScheduleDecision:
        decision = self.schedule()
        self.scheduler.advance(decision)
        for request, _, needs_logits in decision.scheduled:
            assert needs_logits == (request.num_computed_tokens == request.num_tokens)
            if needs_logits and (reason := request.append_token(next_token(request.all_token_ids))):
                self.scheduler.finish(request, reason, self.waiting, self.running)
                self.finished.append(request)
        for rejection in decision.rejected:
            self.scheduler.finish(rejection.request, FinishReason.ABORT, self.waiting, self.running)
        return decision

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.waiting and not self.running:
                return
            self.step()
        raise AssertionError(f"no end after {max_steps} steps: {self.running} {self.waiting}")


def shares(decision: ScheduleDecision) -> list[tuple[str, int, bool]]:
    return [(request.request_id, count, needs) for request, count, needs in decision.scheduled]


class TestBatching:
    def test_a_prompt_then_its_decodes(self) -> None:
        loop = Loop()
        request = loop.add(5, max_tokens=3)
        seen = [shares(loop.step()) for _ in range(3)]
        assert seen == [[("r0001", 5, True)], [("r0001", 1, True)], [("r0001", 1, True)]]
        assert request.finish_reason is FinishReason.LENGTH
        assert loop.cache.num_free_blocks == 100
        assert not loop.waiting
        assert not loop.running

    def test_a_long_prompt_comes_in_chunks_and_only_the_last_needs_logits(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4)
        loop.add(19)
        seen = [shares(loop.step())[0] for _ in range(4)]
        assert [count for _, count, _ in seen] == [8, 8, 3, 1]
        assert [needs for _, _, needs in seen] == [False, False, True, True]

    def test_decodes_come_first_then_running_prefills_then_newcomers(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4)
        loop.add(2, max_tokens=30)
        loop.step()
        loop.add(10)
        loop.step()
        loop.add(9)
        decision = loop.schedule()
        assert shares(decision) == [("r0001", 1, True), ("r0002", 3, True), ("r0003", 4, False)]
        assert (decision.num_decodes, decision.num_batched_tokens) == (1, 8)

    def test_seats_are_limited(self) -> None:
        loop = Loop(max_num_seqs=2)
        for _ in range(3):
            loop.add(3, max_tokens=2)
        assert len(loop.step().scheduled) == 2
        assert [request.request_id for request in loop.waiting] == ["r0003"]
        loop.step()
        assert shares(loop.step()) == [("r0003", 3, True)]

    def test_nothing_to_do_is_an_empty_decision(self) -> None:
        assert Loop().schedule() == ScheduleDecision()

    def test_newcomers_come_in_the_policys_order(self) -> None:
        loop = Loop(policy=PriorityWithAging(), max_num_seqs=2)
        for priority in (5, 0, 3):
            loop.add(3, priority=priority)
        assert [name for name, _, _ in shares(loop.step())] == ["r0002", "r0003"]

    def test_a_cached_prefix_is_not_computed_again(self) -> None:
        loop = Loop()
        request = loop.add(9)
        blocks = loop.cache.pool.allocate(2) or []

        class Remembers:
            num_reclaimable = 0

            def match(self, token_ids: object, extra_key: bytes) -> list[int]:
                return blocks

            def publish(self, token_ids: object, blocks: object, extra_key: bytes) -> None: ...

            def reclaim(self, num_blocks: int) -> None: ...

        loop.cache._prefix_cache = Remembers()
        assert shares(loop.step()) == [("r0001", 1, True)]
        assert (request.num_computed_tokens, request.num_cached_tokens) == (9, 8)


class TestRoom:
    def test_the_latest_gives_way_and_resumes_with_all_its_tokens(self) -> None:
        loop = Loop(num_blocks=4)
        early, late = loop.add(7, max_tokens=8), loop.add(7, max_tokens=3)
        loop.step()
        loop.step()
        before = list(late.all_token_ids)
        decision = loop.step()
        assert decision.preempted == [late]
        assert shares(decision) == [("r0001", 1, True)]
        assert (decision.num_decodes, decision.num_batched_tokens) == (1, 1)
        assert (late.state, late.num_computed_tokens, late.num_preemptions) == (RequestState.PREEMPTED, 0, 1)
        assert loop.waiting == [late]
        assert late.all_token_ids == before
        loop.run()
        assert late.all_token_ids[: len(before)] == before
        assert [len(early.output_token_ids), len(late.output_token_ids)] == [8, 3]

    def test_the_last_in_order_waits_rather_than_take_from_those_before(self) -> None:
        loop = Loop(num_blocks=4)
        early, late = loop.add(5, max_tokens=4), loop.add(7, max_tokens=8)
        loop.step()
        loop.step()
        decision = loop.step()
        assert decision.preempted == []
        assert shares(decision) == [("r0001", 1, True)]
        assert late.state is RequestState.RUNNING
        loop.run()
        assert (late.num_preemptions, len(late.output_token_ids)) == (0, 8)
        assert early.num_preemptions == 0

    def test_a_prefill_takes_room_from_a_later_decode_already_scheduled(self) -> None:
        loop = Loop(num_blocks=5, max_num_batched_tokens=12, max_num_seqs=2)
        late = loop.add(1, max_tokens=9)
        loop.step()
        early = loop.admit_by_hand(loop.add(17))
        early.arrival = 0.0
        assert shares(loop.step()) == [("r0001", 1, True), ("r0002", 11, False)]
        late_tokens = list(late.all_token_ids)
        decision = loop.step()
        assert decision.preempted == [late]
        assert shares(decision) == [("r0002", 6, True)]
        assert (decision.num_decodes, decision.num_batched_tokens) == (0, 6)
        assert late.all_token_ids == late_tokens

    def test_nobody_is_let_in_while_room_is_short(self) -> None:
        loop = Loop(num_blocks=8, max_num_batched_tokens=12, max_num_seqs=3)
        loop.add(4, max_tokens=9)
        loop.step()
        loop.add(20)
        loop.step()
        loop.cache.open("session")
        loop.cache.reserve("session", 8)
        loop.add(1)
        assert loop.cache.num_free_blocks == 1
        assert shares(loop.step()) == [("r0001", 1, True)]
        loop.cache.release("session")
        loop.run()
        assert len(loop.finished) == 3

    def test_newcomers_need_room_for_their_whole_prompt(self) -> None:
        loop = Loop(num_blocks=5, max_num_batched_tokens=4, max_num_seqs=4)
        loop.add(4, max_tokens=9)
        loop.step()
        loop.add(16)
        for _ in range(3):
            assert len(loop.step().scheduled) == 1

    def test_a_shared_block_is_copied_before_it_is_written(self) -> None:
        loop, parent, child = self.forked(num_blocks=4)
        source = loop.cache.block_table(child.request_id)[1]
        decision = loop.schedule()
        assert [request for request, _, _ in decision.scheduled] == [child, parent]
        assert decision.copies == [(source, loop.cache.block_table(child.request_id)[1])]

    def test_nothing_is_copied_for_a_victim(self) -> None:
        loop, _, child = self.forked(num_blocks=4)
        first = loop.admit_by_hand(loop.add(8))
        first.arrival = 0.0
        decision = loop.schedule()
        assert (decision.preempted, decision.copies) == ([child], [])
        assert [request for request, _, _ in decision.scheduled][-1] is first

    @staticmethod
    def forked(num_blocks: int) -> tuple[Loop, Request, Request]:
        """A loop that runs a child before its parent, whose partly filled second block it shares."""
        loop = Loop(num_blocks=num_blocks)
        parent = loop.add(5, max_tokens=9)
        loop.step()
        child = loop.add(6, max_tokens=9)
        loop.waiting.remove(child)
        loop.cache.fork(parent.request_id, child.request_id)
        child.num_computed_tokens, child.state = 5, RequestState.RUNNING
        loop.running.insert(0, child)
        return loop, parent, child


class TestRejection:
    def test_a_prompt_larger_than_the_cache_is_rejected_with_the_numbers(self) -> None:
        loop = Loop(num_blocks=3)
        large, small = loop.add(13), loop.add(2, max_tokens=1)
        decision = loop.step()
        assert [tuple(rejection) for rejection in decision.rejected] == [(large, 13, 12, 3)]
        assert large.state is RequestState.FINISHED
        assert shares(decision) == [("r0002", 2, True)]
        assert loop.finished == [small]

    def test_a_request_that_outgrows_the_cache_alone_is_rejected(self) -> None:
        loop = Loop(num_blocks=2)
        request = loop.add(5, max_tokens=30)
        loop.run()
        assert request.finish_reason is FinishReason.ABORT
        assert request.num_tokens == 9
        assert loop.cache.num_free_blocks == 2

    def test_a_request_in_a_cache_that_others_hold_is_rejected(self) -> None:
        loop = Loop(num_blocks=2)
        loop.cache.open("session")
        loop.cache.reserve("session", 5)
        loop.add(3)
        decision = loop.step()
        assert [tuple(rejection)[1:] for rejection in decision.rejected] == [(3, 8, 0)]


class TestFinish:
    def test_aborting_works_wherever_a_request_is(self) -> None:
        loop = Loop(max_num_seqs=1)
        running, waiting = loop.add(3), loop.add(3)
        loop.step()
        for request in (running, waiting, running):
            loop.scheduler.finish(request, FinishReason.ABORT, loop.waiting, loop.running)
            assert request.is_finished
        assert loop.waiting == loop.running == []
        assert loop.cache.num_free_blocks == 100


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "must be at least max_num_seqs"),
    ],
)
def test_limits_that_cannot_work(limits: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SchedulerConfig(**limits)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, lengths and aborts over a small pool."""

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        policy=st.sampled_from([FirstComeFirstServed(), PriorityWithAging(3.0)]),
        is_reusing=st.booleans(),
    )
    def start(
        self, num_blocks: int, block_size: int, max_num_seqs: int, spare_tokens: int, policy: Any, is_reusing: bool
    ) -> None:
        self.budget = max_num_seqs + spare_tokens
        self.max_num_seqs = max_num_seqs
        self.policy = policy
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": self.budget}
        self.loop = Loop(num_blocks, block_size, policy, is_reusing=is_reusing, **limits)
        self.requests: list[Request] = []

    @rule(
        num_prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 3),
        family=st.none() | st.integers(0, 1),
    )
    def arrive(self, num_prompt: int, max_tokens: int, priority: int, family: int | None) -> None:
        self.requests.append(self.loop.add(num_prompt, max_tokens, priority, family))

    @rule(choice=st.integers(0, 100))
    @precondition(lambda self: any(not request.is_finished for request in self.requests))
    def abort(self, choice: int) -> None:
        alive = [request for request in self.requests if not request.is_finished]
        request = alive[choice % len(alive)]
        self.loop.scheduler.finish(request, FinishReason.ABORT, self.loop.waiting, self.loop.running)

    @rule(num_steps=st.integers(1, 6))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        loop = self.loop
        decoding = {request for request in loop.running if not request.is_prefilling}
        first = min(loop.running, key=lambda request: self.policy.victim_key(request, loop.now), default=None)
        was_idle = not loop.waiting and not loop.running
        decision = loop.step()
        counts = [entry.num_tokens for entry in decision.scheduled]
        assert decision.num_batched_tokens == sum(counts) <= self.budget
        assert all(count > 0 for count in counts)
        requests = [entry.request for entry in decision.scheduled]
        assert len(set(requests)) == len(requests) <= self.max_num_seqs
        assert {request in decoding for request in requests[: decision.num_decodes]} <= {True}
        assert not decoding & set(requests[decision.num_decodes :])
        assert not set(decision.preempted) & set(requests)
        assert first not in decision.preempted
        assert was_idle or requests or decision.rejected, "work to do, and nothing done"

    @invariant()
    def everybody_is_in_one_place(self) -> None:
        if not hasattr(self, "requests"):
            return
        loop = self.loop
        alive = [request for request in self.requests if not request.is_finished]
        assert len(loop.waiting) + len(loop.running) == len(alive) == len({*loop.waiting, *loop.running})
        assert loop.cache.num_sequences == len(loop.running)
        for request in loop.running:
            assert request.state is RequestState.RUNNING
            assert loop.cache.num_tokens(request.request_id) == request.num_computed_tokens < request.num_tokens
        for request in loop.waiting:
            assert request.state in (RequestState.WAITING, RequestState.PREEMPTED)
            assert request.num_computed_tokens == 0

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        for _ in range(5000):
            if not self.loop.waiting and not self.loop.running:
                break
            self.step()
        assert all(request.is_finished for request in self.requests), "somebody starves"
        assert self.loop.cache.num_available_blocks == self.loop.cache.pool.num_blocks
        for request in self.requests:
            assert request.all_token_ids == request.prompt_token_ids + request.output_token_ids
            for index in range(len(request.output_token_ids)):
                end = request.num_prompt_tokens + index
                assert request.all_token_ids[end] == next_token(request.all_token_ids[:end])
            if request.finish_reason is FinishReason.LENGTH:
                assert len(request.output_token_ids) == request.params.max_tokens


SchedulerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
