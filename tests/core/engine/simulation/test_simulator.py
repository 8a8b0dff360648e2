"""Simulated runs against sums done by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aethermind.engine.policies import FirstComeFirstServed, PriorityWithAging, ShortestFirst
from aethermind.engine.scheduling.decision import StepBudget
from aethermind.engine.simulation import SimulationResult, StepCosts, TraceRequest, read_trace, simulate

FOLDER = Path(__file__).parent
COSTS = StepCosts(1.0, 0.01, 0.1, 0.0)
NO_REST = {"num_kv_blocks": 1000, "block_size": 16}


def run(
    trace: list[TraceRequest], policy: Any = None, budget: StepBudget | None = None, **sizes: int
) -> SimulationResult:
    policy, budget = policy or FirstComeFirstServed(), budget or StepBudget(8, 100)
    return simulate(trace, policy, budget, COSTS, **{**NO_REST, **sizes})


def times(result: SimulationResult) -> list[tuple[float | None, float | None]]:
    return [(record.first_token_s, record.finished_s) for record in result.records]


def test_one_request_takes_its_chunks_and_its_decodes() -> None:
    result = run([TraceRequest(5.0, 250, 4)])
    (record,) = result.records
    assert record.first_token_s == pytest.approx(5.0 + 3 * 1.0 + 250 * 0.01)
    assert record.finished_s == pytest.approx(record.first_token_s + 3 * 1.1)
    assert (result.num_steps, result.num_computed_tokens) == (6, 253)
    assert result.busy_s == pytest.approx(COSTS.alone_s(250, 4, 100)) == pytest.approx(result.makespan_s - 5.0)


def test_two_requests_share_steps() -> None:
    result = run([TraceRequest(0.0, 50, 3), TraceRequest(0.0, 50, 3)])
    assert times(result) == [(pytest.approx(2.0), pytest.approx(4.4))] * 2
    assert result.running_s == pytest.approx(2 * result.busy_s)


def test_the_policy_decides_who_runs() -> None:
    trace = [TraceRequest(0.0, 10, 2), TraceRequest(0.1, 90, 9), TraceRequest(0.2, 10, 2, priority=-1)]

    def order(policy: Any) -> list[int]:
        ends = [record.finished_s or 0.0 for record in run(trace, policy, StepBudget(1, 100)).records]
        return sorted(range(3), key=ends.__getitem__)

    assert order(FirstComeFirstServed()) == [0, 1, 2]
    assert order(PriorityWithAging()) == order(ShortestFirst()) == [0, 2, 1]


def test_queue_and_shortage_are_counted() -> None:
    trace = [TraceRequest(0.0, 30, 30) for _ in range(6)]
    result = run(trace, num_kv_blocks=8)
    assert result.max_waiting == 6
    assert result.queue_lengths[0] == (0.0, 6)
    assert result.queue_lengths[-1][1] == 0
    assert sum(record.num_preemptions for record in result.records) > 0
    assert all(record.finished_s for record in result.records)
    assert 0.5 < result.kv_usage_s / result.busy_s <= 1.0


def test_a_request_that_never_fits_is_rejected_and_the_rest_runs() -> None:
    result = run([TraceRequest(0.0, 500, 1), TraceRequest(0.0, 10, 1)], num_kv_blocks=4)
    assert result.num_rejected == 1
    assert [record.finished_s is None for record in result.records] == [True, False]


def test_equal_hash_ids_are_computed_once() -> None:
    result = run(read_trace(FOLDER / "small.jsonl"), num_kv_blocks=10_000)
    assert [record.num_cached_tokens for record in result.records] == [0, 1024, 0], "while the first still runs"
    later = [TraceRequest(0.0, 1300, 9, (0, 1, 2)), TraceRequest(900.0, 1500, 4, (0, 1, 3))]
    assert [record.num_cached_tokens for record in run(later).records] == [0, 1024]


def test_a_run_is_deterministic_and_reports_progress() -> None:
    trace, seen = read_trace(FOLDER / "small.csv"), list[tuple[int, int]]()
    first = run(trace)
    again = simulate(
        trace,
        FirstComeFirstServed(),
        StepBudget(8, 100),
        COSTS,
        on_progress=lambda *progress: seen.append(progress),
        **NO_REST,
    )
    assert again == first
    assert seen
    assert all(done <= total == 8 for done, total in seen)


def test_requests_without_a_prompt_or_an_answer_still_take_a_step() -> None:
    result = run([TraceRequest(0.0, 0, 0)])
    assert times(result) == [(pytest.approx(1.01), pytest.approx(1.01))]
