"""Continuous batching: what many requests share is steps, and a step is what the device's time goes by.

Nothing here looks at a clock. Throughput is tokens a step and steps a batch, which do not depend on the machine; what a
step costs is measured in `tests/bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.end_to_end.conftest import assert_idle

from aethermind import LLM, SamplingParams
from aethermind.engine.engine import Engine

NUM_REQUESTS = 16
NUM_TOKENS = 8
PROMPTS = [[20 + index, *range(30 + index, 30 + index + index % 5)] for index in range(NUM_REQUESTS)]
LONG_PROMPT = list(range(100, 160))


@dataclass(frozen=True)
class Step:
    """What one step computed: prompt and answer tokens by request, and who got a token."""

    num_tokens: dict[str, int]
    num_decodes: int
    answered: list[str]


@dataclass
class Watched:
    """An engine whose steps are written down."""

    engine: Engine
    steps: list[Step]

    def add(self, name: str, prompt: Sequence[int], num_tokens: int = NUM_TOKENS) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self.engine.add_request(name, prompt, params)

    def step(self) -> dict[str, list[int]]:
        """The answers so far of those that grew."""
        return {output.request_id: list(output.outputs[0].token_ids) for output in self.engine.step()}

    def finish(self) -> dict[str, list[int]]:
        answers: dict[str, list[int]] = {}
        while self.engine.has_unfinished:
            answers.update(self.step())
        return answers


@pytest.fixture(scope="module")
def llm(open_demo: Callable[..., LLM]) -> LLM:
    return open_demo(max_num_seqs=NUM_REQUESTS, max_num_batched_tokens=48, enable_prefix_caching=False)


@pytest.fixture
def watched(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    engine, steps = llm.engine, list[Step]()
    run = engine.runner.run

    def noting(decision: Any) -> Any:
        num_tokens = {entry.request.request_id: entry.num_tokens for entry in decision.scheduled}
        sampled = run(decision)
        steps.append(Step(num_tokens, decision.num_decodes, [token.request.request_id for token in sampled]))
        return sampled

    monkeypatch.setattr(engine.runner, "run", noting)
    planned = engine.budget
    yield Watched(engine, steps)
    engine.budget = planned
    assert_idle(llm)


@pytest.fixture(scope="module")
def alone(llm: LLM) -> dict[str, list[int]]:
    """The answers to all prompts, one request at a time."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    answers = {}
    for name, prompt in named([*PROMPTS, LONG_PROMPT]):
        (output,) = llm.generate({"prompt_token_ids": prompt}, params)
        answers[name] = list(output.outputs[0].token_ids)
    return answers


def named(prompts: Iterable[list[int]]) -> list[tuple[str, list[int]]]:
    return [(str(index), prompt) for index, prompt in enumerate(prompts)]


def test_sixteen_requests_take_a_sixteenth_of_the_steps(watched: Watched, alone: dict[str, list[int]]) -> None:
    for name, prompt in named(PROMPTS):
        watched.add(name, prompt)
        watched.finish()
    one_by_one = len(watched.steps)
    watched.steps.clear()
    for name, prompt in named(PROMPTS):
        watched.add(name, prompt)
    answers = watched.finish()
    assert answers == {name: alone[name] for name, _ in named(PROMPTS)}
    # All 48 tokens of the prompts fit in the first step, and every step after it writes one token of each answer.
    assert sum(map(len, PROMPTS)) == 46
    assert (one_by_one, len(watched.steps)) == (NUM_REQUESTS * NUM_TOKENS, NUM_TOKENS)
    assert all(len(step.answered) == NUM_REQUESTS for step in watched.steps)


def test_a_long_prompt_delays_no_answer(watched: Watched, alone: dict[str, list[int]]) -> None:
    watched.engine.adjust(max_prefill_chunk=7)
    writing = named(PROMPTS[:4])
    for name, prompt in writing:
        watched.add(name, prompt)
    answers = watched.step()
    watched.steps.clear()
    watched.add("16", LONG_PROMPT)
    answers.update(watched.finish())
    assert answers == {name: alone[name] for name in ("0", "1", "2", "3", "16")}
    chunks = [step.num_tokens["16"] for step in watched.steps if step.num_tokens.get("16", 0) > 1]
    assert sum(chunks) == len(LONG_PROMPT)
    assert max(chunks) == 7
    for step in watched.steps[: NUM_TOKENS - 1]:  # the others write in every step, ahead of the chunk
        assert step.answered == ["0", "1", "2", "3"]
        assert list(step.num_tokens) == ["0", "1", "2", "3", "16"]
        assert step.num_decodes == 4


def test_a_new_request_joins_the_next_step(watched: Watched, alone: dict[str, list[int]]) -> None:
    watched.add("0", PROMPTS[0])
    answers = watched.step()
    answers.update(watched.step())
    watched.add("1", PROMPTS[1])
    answers.update(watched.step())
    assert [step.answered for step in watched.steps] == [["0"], ["0"], ["0", "1"]]
    answers.update(watched.finish())
    assert answers == {name: alone[name] for name in "01"}
    assert len(watched.steps) == 2 + NUM_TOKENS


def test_a_finished_request_is_replaced_in_the_next_step(watched: Watched, alone: dict[str, list[int]]) -> None:
    watched.engine.adjust(max_num_seqs=2)
    cache = watched.engine.cache
    watched.add("0", PROMPTS[0], num_tokens=2)
    watched.add("1", PROMPTS[1])
    watched.add("2", PROMPTS[2], num_tokens=3)
    free = cache.num_available_blocks
    answers = watched.step()
    assert cache.num_available_blocks == free - 2
    answers.update(watched.step())
    assert cache.num_available_blocks == free - 1
    answers.update(watched.step())
    assert [set(step.answered) for step in watched.steps] == [{"0", "1"}, {"0", "1"}, {"1", "2"}]
    answers.update(watched.finish())
    assert answers == {"0": alone["0"][:2], "1": alone["1"], "2": alone["2"][:3]}
    assert len(watched.steps) == NUM_TOKENS


def test_adjusting_limits_does_not_change_answers(watched: Watched, alone: dict[str, list[int]]) -> None:
    for name, prompt in named(PROMPTS):
        watched.add(name, prompt)
    answers = watched.step()
    watched.engine.adjust(max_num_seqs=4, max_num_batched_tokens=5)
    for _ in range(3):
        answers.update(watched.step())
    watched.engine.adjust(max_num_seqs=NUM_REQUESTS, max_num_batched_tokens=48)
    answers.update(watched.finish())
    assert answers == {name: alone[name] for name, _ in named(PROMPTS)}
    assert [len(step.answered) for step in watched.steps[:5]] == [16, 5, 5, 5, 16]


def test_no_token_is_computed_twice(watched: Watched, alone: dict[str, list[int]]) -> None:
    watched.engine.adjust(max_num_batched_tokens=NUM_REQUESTS)
    for name, prompt in named([*PROMPTS, LONG_PROMPT]):
        watched.add(name, prompt)
    assert watched.finish() == alone
    for name, prompt in named([*PROMPTS, LONG_PROMPT]):
        # The last token of an answer is never an input.
        assert sum(step.num_tokens.get(name, 0) for step in watched.steps) == len(prompt) + NUM_TOKENS - 1
    # Every step but those at the end, when only the last prompt's answer is left to write, is full.
    sizes = [sum(step.num_tokens.values()) for step in watched.steps]
    assert max(sizes) == NUM_REQUESTS
    num_full = sum(size == NUM_REQUESTS for size in sizes)
    assert num_full >= (sum(sizes) - NUM_REQUESTS * NUM_TOKENS) // NUM_REQUESTS
