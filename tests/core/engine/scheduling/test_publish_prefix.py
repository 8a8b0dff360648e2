"""Requests with a common prompt prefix: blocks are reused at once, and answers equal those of requests alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.core.engine.engines import answer, open_engine
from tests.core.engine.loops import Loop, SwapBlocks, Swaps

from aethermind import Runtime, SamplingParams
from aethermind.cache import CacheOutcome

SHARED = [(7 * index) % 900 + 5 for index in range(16)]
PROMPTS = [[*SHARED, 11 + index, 300] for index in range(4)]
OPTIONS = {"block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 8}


def test_a_request_reuses_the_prompt_of_one_that_still_runs() -> None:
    loop = Loop(is_reusing=True)
    first = loop.add(13, max_tokens=30, family=1)
    loop.step()
    second = loop.add(15, max_tokens=30, family=1)
    decision = loop.step()
    assert [num_tokens for _, num_tokens, _ in decision.scheduled] == [1, 3]
    assert second.num_cached_tokens == 12
    assert loop.cache.block_table(first.request_id)[:3] == loop.cache.block_table(second.request_id)[:3]


def test_admission_counts_only_blocks_that_are_not_shared() -> None:
    loop = Loop(num_blocks=16, is_reusing=True)
    requests = [loop.add(42, max_tokens=3, family=1) for _ in range(4)]
    loop.step()
    assert loop.running == requests[:1]
    loop.step()  # ten blocks are shared, and each has one of its own
    assert loop.running == requests
    loop.run()
    assert [request.num_preemptions for request in requests] == [0] * 4


def test_shared_blocks_of_a_victim_are_not_swapped_but_found_again() -> None:
    swap_store = SwapBlocks(20)
    loop = Loop(num_blocks=11, is_reusing=True, swap_store=swap_store, costs=Swaps(9))
    first = loop.add(30, max_tokens=12, family=1)
    loop.step()
    victim = loop.add(30, max_tokens=12, family=1)  # seven blocks of it are the first's, too
    while not victim.num_preemptions:
        loop.step()
    assert (victim.num_computed_tokens, swap_store.held) == (0, {})
    loop.run()
    assert loop.finished == [first, victim]


def test_the_computed_part_of_a_running_prompt_is_reused() -> None:
    loop = Loop(is_reusing=True, max_num_seqs=4, max_num_batched_tokens=8)
    requests = [loop.add(22, family=1) for _ in range(4)]
    loop.run()
    # The second was let in when 16 tokens of the first had been read.
    assert [request.num_cached_tokens for request in requests] == [0, 16, 20, 20]


@pytest.mark.parametrize("num_prompt", [9, 16, 17, 32, 33])
def test_a_prompt_is_hashed_a_few_times_however_many_steps_it_takes(
    num_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(is_reusing=True, max_num_seqs=1, max_num_batched_tokens=4)
    offered, publish = [], loop.cache.publish

    def count(seq_id: str, token_ids: Sequence[int]) -> CacheOutcome:
        offered.append(loop.running[0].num_computed_tokens)
        return publish(seq_id, token_ids)

    monkeypatch.setattr(type(loop.cache), "publish", lambda _, *given: count(*given))
    loop.add(num_prompt, max_tokens=2)
    loop.run()
    assert offered[-1] == num_prompt
    assert len(offered) <= num_prompt.bit_length()


def test_an_answer_is_published_only_at_its_end() -> None:
    """A sequence that goes on would be hashed anew with each of its blocks."""
    loop = Loop(is_reusing=True)
    request = loop.add(5, max_tokens=30)
    for _ in range(20):
        loop.step()
    assert request.num_computed_tokens > 16
    assert loop.cache.query(request.all_token_ids) == 4
    loop.run()
    assert loop.cache.query(request.all_token_ids) >= 28


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_answers_equal_those_of_requests_alone(runtime: Runtime, device: str, kv_cache_dtype: str) -> None:
    alone = open_engine(runtime, device, enable_prefix_caching=False, kv_cache_dtype=kv_cache_dtype, **OPTIONS)
    expected = [answer(alone, prompt, 8) for prompt in PROMPTS]
    engine = open_engine(runtime, device, kv_cache_dtype=kv_cache_dtype, **OPTIONS)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    found, num_cached = {}, {}
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished:
        for output in engine.step():
            found[output.request_id] = output.outputs[0].token_ids
            num_cached[output.request_id] = output.num_cached_tokens
    assert [found[str(index)] for index in range(4)] == expected
    assert [num_cached[str(index)] for index in range(4)] == [0, 16, 16, 16]


def test_a_step_that_fails_leaves_nothing_to_reuse(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(runtime, **OPTIONS)
    engine.add_request("0", PROMPTS[0], SamplingParams(max_tokens=2))

    def fail(_: object) -> list[object]:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", fail)
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.step()
    assert engine.cache.query(PROMPTS[0]) == 0
    engine.step()
    assert engine.cache.query(PROMPTS[0]) == 8


def test_partly_filled_blocks_are_not_published() -> None:
    loop = Loop(is_reusing=True)
    assert loop.cache.publish("unknown", [1, 2]) is CacheOutcome.UNKNOWN_SEQUENCE
