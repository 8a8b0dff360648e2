"""Earliest deadline first."""

from __future__ import annotations

import pytest

from aethermind.engine.policies import EarliestDeadline
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams


def request(request_id: str, arrival: float, deadline_ms: float | None) -> Request:
    options = RequestOptions(deadline_ms=deadline_ms)
    return Request(request_id, [1], SamplingParams(), arrival, max_model_len=9, options=options)


def ordered(policy: EarliestDeadline, requests: list[Request], now: float) -> str:
    return "".join(one.request_id for one in sorted(requests, key=lambda one: policy.order_key(one, now)))


def test_deadlines_count_from_arrival_and_have_a_default() -> None:
    policy = EarliestDeadline(default_s=10.0)
    requests = [request("c", 0.0, None), request("a", 5.0, 2000.0), request("b", 0.0, 9000.0)]
    assert ordered(policy, requests, 5.0) == "abc"
    assert max(requests, key=lambda one: policy.victim_key(one, 5.0) or ()).request_id == "c"
    assert policy.admit(requests[0], 2, 2)
    assert not policy.admit(requests[0], 3, 2)


def test_a_late_request_is_ordered_later_for_a_limited_time() -> None:
    policy = EarliestDeadline(lateness_s=10.0, seconds_per_prompt_token=0.1, seconds_per_new_token=0.05)
    late = request("l", 0.0, 1000.0)
    assert ordered(policy, [late, request("a", 0.3, 1000.0)], 0.49) == "la"
    assert ordered(policy, [late, request("a", 0.3, 1000.0)], 0.51) == "al", "it takes 0.1 s + 8 times 0.05 s"
    assert ordered(policy, [late, request("b", 11.0, 1000.0)], 11.2) == "lb"
    assert policy.victim_key(late, 0.0) == policy.victim_key(late, 99.0)


@pytest.mark.parametrize("name", ["default_s", "lateness_s", "seconds_per_prompt_token", "seconds_per_new_token"])
@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_seconds_must_be_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is"):
        EarliestDeadline(**{name: value})
