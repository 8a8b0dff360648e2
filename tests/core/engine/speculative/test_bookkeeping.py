"""Drafts right and wrong through scheduler and cache: the tokens of a run without any, and no block lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.engine.loops import Loop, SwapBlocks, Swaps, next_token
from tests.core.engine.speculative.drafting import AlwaysMost, Scripted
from tests.scale import scaled

from aethermind.engine.requests.request import FinishReason, Request
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.speculative.speculator import Speculator
from aethermind.engine.steps.batch import DraftRow, count_accepted
from aethermind.engine.steps.model_runner import SampledToken


class DraftingLoop(Loop):
    """A loop whose requests are drafted: `plan` says for each draft of each step whether it is right."""

    def __init__(self, plan: list[list[bool]], most: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self._plan = plan
        self._num_drafted = 0
        self.speculator = Speculator(Scripted(self._draft), AlwaysMost(most), self.cache, 2000, lambda: 0.0)
        self.num_checked = 0

    def _draft(self, request: Request, most: int) -> list[int]:
        verdicts = self._plan[self._num_drafted % len(self._plan)]
        self._num_drafted += 1
        tokens = list(request.all_token_ids)
        for is_right in verdicts:
            tokens.append(next_token(tokens) if is_right else 1500)
        return tokens[len(request.all_token_ids) :]

    def step(self) -> ScheduleDecision:
        self.speculator.propose(self.running, self.budget.max_draft_tokens, is_alone=not self.waiting)
        decision = self.schedule()
        sampled = [token for entry in decision.scheduled if entry.needs_logits for token in self._sample(*entry)]
        self.scheduler.advance(decision)
        self.num_checked += decision.num_extensions
        assert decision.num_batched_tokens == sum(entry.num_tokens for entry in decision.scheduled)
        assert decision.num_batched_tokens <= self.budget.max_num_batched_tokens
        assert decision.num_decodes + decision.num_extensions <= len(decision.scheduled)
        for token in self.speculator.verify(decision, sampled):
            if not token.request.is_finished and (reason := token.request.append_token(token.token_id)):
                self.scheduler.finish(token.request, reason, self.waiting, self.running)
                self.speculator.forget(token.request.request_id)
                self.finished.append(token.request)
        for request in self.running:
            assert not request.draft_token_ids
            assert self.cache.num_tokens(request.request_id) == request.num_computed_tokens < request.num_tokens
        for rejection in decision.rejected:
            self.scheduler.finish(rejection.request, FinishReason.ABORT, self.waiting, self.running)
        return decision

    def _sample(self, request: Request, num_tokens: int, _: bool) -> list[SampledToken]:
        num_drafts = max(request.num_computed_tokens + num_tokens - request.num_tokens, 0)
        rows = [DraftRow(request, number) for number in range(num_drafts + 1)]
        return [SampledToken(request, next_token(row.all_token_ids)) for row in rows]


def outputs(loop: Loop) -> dict[str, list[int]]:
    return {request.request_id: request.output_token_ids for request in loop.finished}


LOADS = st.lists(
    st.tuples(st.integers(1, 14), st.integers(1, 18), st.sampled_from([None, 1, 2]), st.integers(0, 5)),
    min_size=1,
    max_size=7,
)
PLANS = st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=8)


@settings(max_examples=scaled(15_000), deadline=None)
@given(LOADS, PLANS, st.integers(8, 30), st.sampled_from([0, 12]), st.sampled_from([8, 16, 512]), st.integers(0, 9))
def test_tokens_are_those_of_single_steps(
    load: list[tuple[int, int, int | None, int]],
    plan: list[list[bool]],
    num_blocks: int,
    num_swap_blocks: int,
    max_num_batched_tokens: int,
    max_draft_tokens: int,
) -> None:
    def run(loop: Loop) -> Loop:
        for num_prompt, max_tokens, family, num_steps in load:
            loop.add(num_prompt, max_tokens, family)
            for _ in range(num_steps):
                loop.step()
        loop.run()
        return loop

    limits = {"max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": 8}
    drafted = DraftingLoop(
        plan,
        num_blocks=num_blocks,
        is_reusing=True,
        swap_store=SwapBlocks(num_swap_blocks) if num_swap_blocks else None,
        costs=Swaps(6) if num_swap_blocks else None,
        max_draft_tokens=max_draft_tokens,
        **limits,
    )
    assert outputs(run(drafted)) == outputs(run(Loop(num_blocks=100, **limits)))
    assert drafted.cache.num_sequences == 0
    assert drafted.cache.num_available_blocks == num_blocks


def test_right_drafts_save_steps() -> None:
    loop = DraftingLoop([[True] * 3], max_draft_tokens=8)
    request = loop.add(5, max_tokens=13)
    num_steps = 0
    while not loop.finished:
        loop.step()
        num_steps += 1
    assert num_steps == 4, "a prompt with one token, and three steps of four"
    assert (request.num_draft_tokens, request.num_accepted_tokens) == (9, 9)


def test_a_prompt_is_read_as_fast_as_without_drafts() -> None:
    loop = DraftingLoop([[True] * 4], max_draft_tokens=64, max_num_batched_tokens=10, max_num_seqs=4)
    loop.add(2, max_tokens=20)
    loop.step()
    long = loop.add(30)
    chunks = []
    while long.is_prefilling or not long.num_computed_tokens:
        decision = loop.step()
        chunks += [count for request, count, _ in decision.scheduled if request is long]
    assert chunks[1:] == [9, 9, 7] or chunks == [9, 9, 9, 3], chunks


def test_no_request_is_preempted_for_a_draft() -> None:
    loop = DraftingLoop([[False] * 4], num_blocks=4, block_size=4, max_draft_tokens=64)
    first, second = loop.add(6, max_tokens=2), loop.add(6, max_tokens=2)
    loop.run()
    assert first.num_preemptions == second.num_preemptions == 0
    assert loop.num_checked == 0, "both blocks of each are needed, and there are four"


@pytest.mark.parametrize(("max_drafts", "expected"), [(8, 4), (3, 3)])
def test_a_request_near_its_end_does_not_change_the_drafts_of_others(max_drafts: int, expected: int) -> None:
    loop = DraftingLoop([[True] * 4], max_draft_tokens=8)
    long, short = loop.add(5, max_tokens=12), loop.add(5, max_tokens=2)
    loop.step()
    loop.speculator.propose(loop.running, max_drafts, is_alone=True)
    assert len(long.draft_token_ids) == expected
    assert not short.draft_token_ids


def test_drafts_of_a_failed_step_are_dropped() -> None:
    loop = DraftingLoop([[False] * 4], max_draft_tokens=8)
    requests = [loop.add(5, max_tokens=12) for _ in range(2)]
    loop.step()
    loop.speculator.propose(loop.running, 8, is_alone=True)
    assert all(request.draft_token_ids for request in requests)
    loop.speculator._controller._wakes_at = 5  # the step came to nothing, and those until the fifth have no drafts
    loop.run()
    expected = Loop()
    for _ in requests:
        expected.add(5, max_tokens=12)
    expected.run()
    assert outputs(loop) == outputs(expected)


@pytest.mark.parametrize(
    ("drafts", "sampled", "expected"),
    [([], [5], 0), ([5, 6], [5, 6, 7], 2), ([5, 6], [5, 7, 7], 1), ([5, 6], [6, 6, 6], 0)],
)
def test_count_accepted(drafts: list[int], sampled: list[int], expected: int) -> None:
    assert count_accepted(drafts, sampled) == expected
