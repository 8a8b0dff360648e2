"""Parallel sampling: one request for the caller, and one prompt to compute."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.errors import InvalidArgumentError
from aethermind.graph.executor import PlanExecutor

PROMPT = list(range(5, 25))


def test_a_member_of_a_group_cannot_be_aborted_alone(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null")
    engine.add_request("a", PROMPT, SamplingParams(temperature=1.0, max_tokens=6, n=3, ignore_eos=True))
    for _ in range(3):  # while its siblings wait to fork it, while they run
        assert engine.abort("a/1") is None
        with pytest.raises(InvalidArgumentError, match="'a/1' is in use"):
            engine.add_request("a/1", PROMPT, SamplingParams())
        engine.step()
    ended = engine.abort("a")
    assert ended is not None
    assert [one.finish_reason for one in ended.outputs] == ["abort"] * 3
    assert not engine.has_unfinished
    assert engine.cache.num_sequences == 0


@pytest.mark.parametrize(("max_num_seqs", "num_steps"), [(8, 2), (3, 3), (1, 5)])
def test_siblings_fork_the_prompt_of_a_request_that_ends_with_its_first_token(
    runtime: Runtime, max_num_seqs: int, num_steps: int
) -> None:
    engine = open_engine(runtime, "null", max_num_seqs=max_num_seqs, enable_prefix_caching=False)
    engine.add_request("a", PROMPT, SamplingParams(temperature=1.0, max_tokens=1, n=5))
    computed: list[int] = []

    def run(executor: PlanExecutor, symbols: tuple[int, ...], decision: ScheduleDecision) -> None:
        computed.append(decision.num_batched_tokens)
        executor.run(symbols)

    engine.runner.observer = run
    while engine.has_unfinished:
        outputs = engine.step()
    assert [len(one.token_ids) for one in outputs[0].outputs] == [1] * 5
    assert sum(computed) == len(PROMPT) + 4
    assert len(computed) == num_steps
