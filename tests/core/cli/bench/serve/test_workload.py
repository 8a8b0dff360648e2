"""The workload of a load test: prompts and arrival times."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, stdev

import pytest

from aethermind.cli.bench.serve.workload import random_requests, requests_of_trace
from aethermind.engine.simulation.trace import TraceRequest


def test_arrivals_are_a_poisson_process_that_a_seed_repeats() -> None:
    arrivals, again, others = (
        [request.arrival_s for request in random_requests(4000, 1, 1, request_rate=25.0, seed=seed)]
        for seed in (3, 3, 4)
    )
    assert arrivals == again != others
    assert arrivals[0] == 0.0
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert min(gaps) >= 0.0
    assert mean(gaps) == pytest.approx(1 / 25, rel=0.05)
    assert stdev(gaps) == pytest.approx(1 / 25, rel=0.1), "exponential: as spread as long"


def test_prompts_have_the_given_length_and_share_no_prefix() -> None:
    sent = random_requests(5, 40, 7, request_rate=None, seed=0)
    prompts = [request.token_ids() for request in sent]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 5
    assert all(256 <= token_id < 512 for prompt in prompts for token_id in prompt)
    assert sent[0].token_ids() == prompts[0]
    assert len(sent[0].text().split()) == 40
    assert {(request.arrival_s, request.num_output_tokens) for request in sent} == {(None, 7)}


def test_a_trace_is_replayed_faster_with_shared_prefixes_and_priorities() -> None:
    requests = [
        TraceRequest(0.0, 700, 3, (1, 2)),
        TraceRequest(3.0, 1100, 0, (1, 3), priority=-1, deadline_ms=50.0),
        TraceRequest(6.0, 0, 2),
    ]
    first, second, third = requests_of_trace(requests, rate_scale=2.0, seed=0)
    assert [request.arrival_s for request in (first, second, third)] == [0.0, 1.5, 3.0]
    assert [len(request.token_ids()) for request in (first, second, third)] == [700, 1100, 1]
    assert [request.num_output_tokens for request in (first, second, third)] == [3, 1, 2]
    assert first.token_ids()[:512] == second.token_ids()[:512]
    assert first.token_ids()[512:700] != second.token_ids()[512:700]
    assert (first.extra, second.extra) == ({}, {"priority": -1, "deadline_ms": 50.0})
