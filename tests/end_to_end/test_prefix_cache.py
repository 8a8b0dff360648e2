"""Reuse of what earlier requests computed: it is seen in counts and never in tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from tests.end_to_end.conftest import assert_idle

from aethermind import LLM, RequestOutput, SamplingParams
from aethermind.errors import InvalidArgumentError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True, repetition_penalty=1.1)
STORY = "One day, a little girl named Lily found a needle in her room. "


def tokens(results: list[RequestOutput]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


def conversation(seed: int) -> list[str]:
    """Prompts that begin alike, part, repeat and grow."""
    pick = random.Random(seed)
    prompts = [STORY]
    for _ in range(7):
        earlier = pick.choice(prompts)
        prompts.append(earlier[: pick.randint(1, len(earlier))] + pick.choice(("Tom", " and the fox", STORY[:30])))
    return prompts


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4},
        {"block_size": 1, "max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"block_size": 4, "num_kv_blocks": 30},
        {"block_size": 8, "num_kv_blocks": 10, "max_num_seqs": 4},
    ],
    ids=["roomy", "chunked", "short", "tiny"],
)
def test_tokens_equal_those_without_prefix_caching(
    open_demo: Callable[..., LLM], options: dict[str, int], params: SamplingParams
) -> None:
    without, cached = (open_demo(**options, enable_prefix_caching=is_on) for is_on in (False, True))
    num_cached = 0
    for seed in range(3):
        prompts = conversation(seed)
        expected, results = without.generate(prompts, params), cached.generate(prompts, params)
        assert tokens(results) == tokens(expected)
        assert {result.num_cached_tokens for result in expected} == {0}
        num_cached += sum(result.num_cached_tokens for result in results)
    assert num_cached > 0
    assert_idle(cached)


def test_the_next_turn_reuses_prompt_and_answer(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(block_size=4)
    (first,) = llm.generate(STORY, GREEDY)
    known = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    assert first.num_cached_tokens == 0
    (second,) = llm.generate({"prompt_token_ids": [*known, 7, 8, 9]}, GREEDY)
    assert second.num_cached_tokens == (len(known) - 1) // 4 * 4, "all but the last token had been computed"
    (again,) = llm.generate(STORY, GREEDY)
    assert again.num_cached_tokens == (len(first.prompt_token_ids) - 1) // 4 * 4
    assert tokens([again]) == tokens([first])


def test_an_answer_cut_short_is_reused_too(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(block_size=1)
    with closing(llm.stream(STORY, GREEDY)) as stream:
        *_, last = islice(stream, 5)
    known = [*last.prompt_token_ids, *last.outputs[0].token_ids]
    (result,) = llm.generate({"prompt_token_ids": [*known, 7]}, GREEDY)
    assert result.num_cached_tokens == len(known) - 1


def test_running_requests_evict_cached_blocks(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(block_size=4, num_kv_blocks=16)
    prompts = [{"prompt_token_ids": [start + i for i in range(40)]} for start in (100, 200, 300)]
    for _ in range(2):
        for prompt in prompts:
            (result,) = llm.generate(prompt, GREEDY)
            assert result.num_cached_tokens == 0, "the others took its blocks"
    assert llm.engine.cache.num_free_blocks < 16
    assert_idle(llm)


def test_prompts_with_different_embeddings_share_no_blocks(open_demo: Callable[..., LLM]) -> None:
    """They all stand in the places of the same token ids."""
    without, cached = (open_demo(block_size=4, enable_prefix_caching=is_on) for is_on in (False, True))
    values = np.random.default_rng(3).standard_normal((2, 12, 256)).astype(np.float32)
    for index, num_cached in ((0, 0), (1, 0), (0, 8)):
        prompt = {"prompt_embeds": values[index]}
        (expected,), (result,) = without.generate(prompt, GREEDY), cached.generate(prompt, GREEDY)
        assert tokens([result]) == tokens([expected])
        assert result.num_cached_tokens == num_cached
    (plain,) = cached.generate({"prompt_token_ids": [0] * 12}, GREEDY)
    assert plain.num_cached_tokens == 0


def test_prefix_caching_can_be_disabled(open_demo: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidArgumentError, match="enable_prefix_caching should be True or False"):
        open_demo(enable_prefix_caching="yes")
