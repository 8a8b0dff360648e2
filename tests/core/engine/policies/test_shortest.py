"""Shortest first."""

from __future__ import annotations

import pytest

from aethermind.engine.policies import ShortestFirst
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams


def request(request_id: str, arrival: float, num_prompt: int, max_tokens: int | None) -> Request:
    return Request(request_id, [1] * num_prompt, SamplingParams(max_tokens=max_tokens), arrival, max_model_len=100)


def test_work_is_the_prompt_and_the_longest_answer_allowed() -> None:
    policy = ShortestFirst(0.5, 2.0)
    assert policy.work_s(request("a", 0.0, 4, 3)) == 8.0
    assert policy.work_s(request("a", 0.0, 40, None)) == 140.0


def test_the_shortest_is_admitted_and_the_longest_preempted_first() -> None:
    policy = ShortestFirst()
    requests = [request("b", 0.0, 9, 9), request("a", 0.1, 9, 3), request("c", 0.0, 50, 9)]
    assert "".join(one.request_id for one in sorted(requests, key=lambda one: policy.order_key(one, 1.0))) == "abc"
    assert max(requests, key=lambda one: policy.victim_key(one, 1.0) or ()).request_id == "c"
    assert policy.admit(requests[0], 2, 2)
    assert not policy.admit(requests[0], 3, 2)


def test_a_long_request_is_overtaken_for_a_limited_time_only() -> None:
    policy = ShortestFirst(1.0, 1.0, size_weight=2.0)
    long, short = request("l", 0.0, 20, 10), request("s", 51.0, 1, 1)
    assert policy.order_key(short, 60.0) < policy.order_key(long, 60.0)
    assert policy.order_key(long, 60.0) < policy.order_key(request("t", 57.0, 1, 1), 60.0)


@pytest.mark.parametrize("name", ["seconds_per_prompt_token", "seconds_per_new_token", "size_weight"])
@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_parameters_must_be_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is"):
        ShortestFirst(**{name: value})
