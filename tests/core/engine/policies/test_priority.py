"""Priority with aging."""

from __future__ import annotations

import math

import pytest

from aethermind.engine.policies import PriorityWithAging
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams


def request(request_id: str, arrival: float, priority: int) -> Request:
    options = RequestOptions(priority=priority)
    return Request(request_id, [1], SamplingParams(), arrival, max_model_len=9, options=options)


def ordered(policy: PriorityWithAging, requests: list[Request], now: float = 100.0) -> str:
    return "".join(item.request_id for item in sorted(requests, key=lambda item: policy.order_key(item, now)))


def test_the_order_is_by_priority_then_arrival() -> None:
    requests = [request("d", 1.0, 5), request("c", 2.0, 0), request("b", 1.0, 0), request("a", 2.0, -1)]
    assert ordered(PriorityWithAging(), requests) == "abcd"


def test_waiting_outweighs_priority_in_the_end() -> None:
    policy = PriorityWithAging(aging_s=10.0)
    patient = request("p", 0.0, 3)
    assert ordered(policy, [patient, request("u", 29.0, 0)]) == "up"
    assert ordered(policy, [patient, request("u", 31.0, 0)]) == "pu"


def test_the_order_is_the_effective_priority_at_any_time() -> None:
    policy = PriorityWithAging(aging_s=7.0)
    requests = [request(str(index), index * 3.1 % 17, index * 5 % 4) for index in range(10)]
    for now in (17.0, 1000.0):
        by_definition = sorted(requests, key=lambda item: item.priority - (now - item.arrival) / 7.0)
        assert ordered(policy, requests, now) == "".join(item.request_id for item in by_definition)


def test_the_least_urgent_request_is_preempted_first() -> None:
    policy = PriorityWithAging()
    requests = [request("a", 0.0, 1), request("b", 0.0, 2), request("c", 0.0, 0)]
    assert max(requests, key=lambda item: policy.victim_key(item, 1.0) or ()).request_id == "b"
    assert policy.admit(requests[0], 2, 2)
    assert not policy.admit(requests[0], 3, 2)


def test_a_vip_is_never_preempted_but_waits_like_others() -> None:
    policy = PriorityWithAging(aging_s=1.0, vip_priority=-5)
    assert policy.victim_key(request("v", 0.0, -5), 1.0) is None
    assert policy.victim_key(request("u", 0.0, -4), 1.0) is not None
    assert ordered(policy, [request("v", 8.0, -5), request("p", 2.0, 0)]) == "pv"


@pytest.mark.parametrize("aging_s", [0.0, -1.0, math.inf, math.nan])
def test_aging_must_be_positive_and_finite(aging_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match="aging_s is"):
        PriorityWithAging(aging_s)
