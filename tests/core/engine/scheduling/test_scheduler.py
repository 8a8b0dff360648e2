"""Scheduler: batching, preemption, rejection, swapping, and that all requests finish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.engine.loops import Loop, SwapBlocks, Swaps, shares

from aethermind.cache import CacheState
from aethermind.engine.policies import PriorityWithAging
from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
from aethermind.engine.scheduling.preemption import MAX_PREEMPTIONS
from aethermind.errors import InvalidArgumentError


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

    def test_tokens_that_were_forced_are_computed_with_the_decodes(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4)
        requests = [loop.add(2, max_tokens=30) for _ in range(3)]
        loop.step()
        for request, count in zip(requests, (5, 0, 2), strict=True):
            for token_id in range(count):
                request.append_token(token_id)
        loop.add(9)
        decision = loop.schedule()
        assert shares(decision) == [("r0002", 1, True), ("r0001", 3, False), ("r0003", 3, True), ("r0004", 1, False)]
        assert (decision.num_decodes, decision.num_extensions, decision.num_batched_tokens) == (1, 2, 8)
        assert decision.phase == "mixed"

    def test_many_tokens_of_an_answer_come_in_chunks_like_a_prompt(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4)
        loop.scheduler._cache.max_model_len = 200
        request = loop.add(2, max_tokens=90)
        loop.step()
        request.max_total_tokens = 200
        for token_id in range(70):
            request.append_token(token_id)
        decision = loop.schedule()
        assert shares(decision) == [("r0001", 8, False)]
        assert (decision.num_extensions, decision.phase) == (0, "prefill")

    def test_the_number_of_running_requests_is_limited(self) -> None:
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
            num_evictable = 0

            def match(self, token_ids: object, extra_key: bytes) -> list[int]:
                return blocks

            def publish(self, token_ids: object, blocks: object, extra_key: bytes) -> None: ...

            def evict(self, num_blocks: int) -> None: ...

        loop.cache._allocator.prefix_cache = Remembers()
        assert shares(loop.step()) == [("r0001", 1, True)]
        assert (request.num_computed_tokens, request.num_cached_tokens) == (9, 8)


class TestRoom:
    def test_the_latest_request_is_preempted_and_resumes_with_all_its_tokens(self) -> None:
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
        assert list(loop.waiting) == [late]
        assert late.all_token_ids == before
        loop.run()
        assert late.all_token_ids[: len(before)] == before
        assert [len(early.output_token_ids), len(late.output_token_ids)] == [8, 3]

    def test_without_preemption_a_request_without_free_blocks_skips_the_step(self) -> None:
        loop = Loop(num_blocks=4)
        early, late = loop.add(7, max_tokens=8), loop.add(7, max_tokens=3)
        loop.step()
        loop.step()
        assert not loop.scheduler.runs_without_preemption(loop.now, loop.waiting, loop.running, loop.budget)
        planned, loop.budget = loop.budget, replace(loop.budget, may_preempt=False)
        assert loop.step() == ScheduleDecision()
        assert loop.running == [early, late]
        loop.budget = planned
        assert loop.step().preempted == [late]
        assert loop.scheduler.runs_without_preemption(loop.now, loop.waiting, loop.running, loop.budget)
        loop.run()

    def test_the_last_request_in_order_skips_the_step_instead_of_preempting(self) -> None:
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

    def test_a_prefill_preempts_a_later_decode_that_was_scheduled(self) -> None:
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

    def test_no_request_is_admitted_while_blocks_are_short(self) -> None:
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

    def test_a_new_request_needs_blocks_for_its_whole_prompt(self) -> None:
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
        assert [tuple(rejection) for rejection in decision.rejected] == [(large, 13, 12, 3, 0)]
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
        assert [tuple(rejection)[1:] for rejection in decision.rejected] == [(3, 8, 0, 0)]


class TestFinish:
    def test_aborting_works_wherever_a_request_is(self) -> None:
        loop = Loop(max_num_seqs=1)
        running, waiting = loop.add(3), loop.add(3)
        loop.step()
        for request in (running, waiting, running):
            loop.scheduler.finish(request, FinishReason.ABORT, loop.waiting, loop.running)
            assert request.is_finished
        assert not loop.waiting
        assert loop.running == []
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
        StepBudget(**limits)


class TestSwapping:
    def test_a_victim_is_swapped_if_that_is_cheaper_and_resumes(self) -> None:
        swap_store = SwapBlocks(10)
        loop = Loop(num_blocks=4, swap_store=swap_store, costs=Swaps())
        loop.add(7, max_tokens=8)
        late = loop.add(7, max_tokens=4)
        loop.step()
        loop.step()
        assert loop.step().preempted == [late]
        assert (late.num_computed_tokens, swap_store.held) == (8, {"r0002": 2})
        loop.run()
        assert (swap_store.num_loads, swap_store.held) == (1, {})
        assert [len(request.output_token_ids) for request in loop.finished] == [8, 4]

    @pytest.mark.parametrize(("num_blocks", "least"), [(0, 1), (10, 9)])
    def test_a_victim_is_recomputed_if_the_store_is_full_or_that_is_cheaper(self, num_blocks: int, least: int) -> None:
        swap_store = SwapBlocks(num_blocks)
        loop = Loop(num_blocks=4, swap_store=swap_store, costs=Swaps(least))
        loop.add(7, max_tokens=8)
        late = loop.add(7, max_tokens=3)
        loop.run()
        assert (late.num_preemptions, swap_store.num_loads) == (1, 0)

    def test_a_request_that_is_swapped_in_concurrently_skips_that_step(self) -> None:
        loop = Loop(num_blocks=8, swap_store=SwapBlocks(9), costs=Swaps(), overlaps_swaps_with_steps=True)
        for max_tokens in (8, 11, 9, 8):
            loop.add(num_prompt=5, max_tokens=max_tokens)
        came_back_beside_others = 0
        while loop.waiting or loop.running:
            swapped = [one for one in loop.waiting if loop.cache.state(one.request_id) is CacheState.SWAPPED]
            decision = loop.step()
            back = [one for one in swapped if one not in loop.waiting]
            taking_part = [entry.request for entry in decision.scheduled]
            if any(one not in back for one in taking_part):
                assert not set(back) & set(taking_part)
                came_back_beside_others += len(back)
            else:
                assert set(back) <= set(taking_part)
        assert came_back_beside_others > 0
        assert len(loop.finished) == 4

    def test_aborting_a_swapped_request_frees_its_swap_blocks(self) -> None:
        swap_store = SwapBlocks(10)
        loop = Loop(num_blocks=4, swap_store=swap_store, costs=Swaps())
        loop.add(7, max_tokens=8)
        late = loop.add(7, max_tokens=4)
        while not late.num_preemptions:
            loop.step()
        loop.scheduler.finish(late, FinishReason.ABORT, loop.waiting, loop.running)
        assert (swap_store.held, loop.cache.num_sequences, len(loop.waiting)) == ({}, 1, 0)


class TestNoThrashing:
    def test_a_resumed_request_is_not_preempted_before_it_makes_progress(self) -> None:
        loop = Loop(num_blocks=4)
        early, resumed = loop.admit_by_hand(loop.add(4, max_tokens=9)), loop.admit_by_hand(loop.add(11, max_tokens=9))
        loop.step()
        resumed.num_preemptions = 1
        resumed.num_tokens_at_resume = resumed.num_tokens
        decision = loop.schedule()
        assert shares(decision) == [("r0002", 1, True)], "the first waits, though its rank is better"
        loop.scheduler.advance(decision)
        resumed.append_token(1)
        decision = loop.schedule()
        assert (decision.preempted, shares(decision)) == ([resumed], [("r0001", 1, True)])
        assert early.num_preemptions == 0

    def test_if_all_wait_the_first_request_preempts_even_a_resumed_one(self) -> None:
        loop = Loop(num_blocks=4)
        loop.admit_by_hand(loop.add(4, max_tokens=9))
        resumed = loop.admit_by_hand(loop.add(12, max_tokens=9))
        loop.step()
        resumed.num_preemptions = 1
        resumed.num_tokens_at_resume = resumed.num_tokens
        decision = loop.schedule()
        assert (decision.preempted, shares(decision)) == ([resumed], [("r0001", 1, True)])
        assert decision.num_decodes == 1

    def test_a_request_preempted_too_often_is_admitted_with_all_its_blocks(self) -> None:
        loop = Loop(num_blocks=8)
        loop.add(4, max_tokens=13)
        tired = loop.add(4, max_tokens=13)
        first = loop.admit_by_hand(next(iter(loop.waiting)))
        first.num_preemptions = tired.num_preemptions = MAX_PREEMPTIONS
        assert len(loop.step().scheduled) == 1, "two times 5 blocks are promised, and there are 8"
        loop.run()
        assert (first.num_preemptions, tired.num_preemptions) == (MAX_PREEMPTIONS, MAX_PREEMPTIONS)

    def test_a_vip_preempts_and_is_never_preempted(self) -> None:
        loop = Loop(num_blocks=4, policy=PriorityWithAging())
        ordinary, vip = loop.add(7, max_tokens=8), loop.add(7, max_tokens=8, priority=-10)
        loop.run()
        assert (ordinary.num_preemptions, vip.num_preemptions) == (1, 0)
        assert loop.finished == [vip, ordinary]


class TestBudget:
    def test_a_prompts_share_of_a_step_can_be_limited(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4, max_prefill_chunk=3)
        loop.add(7)
        loop.add(7)
        assert shares(loop.step()) == [("r0001", 3, False), ("r0002", 3, False)]

    def test_limits_may_change_between_steps(self) -> None:
        loop = Loop(max_num_batched_tokens=8, max_num_seqs=4)
        for _ in range(4):
            loop.add(2, max_tokens=9)
        assert len(loop.step().scheduled) == 4
        loop.add(2)
        loop.budget = StepBudget(max_num_seqs=2, max_num_batched_tokens=3)
        assert [name for name, _, _ in shares(loop.step())] == ["r0001", "r0002", "r0003"]
        assert len(loop.running) == 4
        loop.budget = StepBudget(max_num_seqs=5, max_num_batched_tokens=8)
        assert len(loop.step().scheduled) == 5

    def test_the_same_calls_lead_to_the_same_decisions(self) -> None:
        def decisions() -> list[list[tuple[str, int, bool]]]:
            loop = Loop(num_blocks=9, max_num_batched_tokens=8, max_num_seqs=4)
            for length in (5, 9, 3, 12, 7):
                loop.add(length, max_tokens=7)
            return [shares(loop.step()) for _ in range(40)]

        assert decisions() == decisions()
