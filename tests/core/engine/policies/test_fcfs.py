"""First come, first served."""

from __future__ import annotations

from aethermind.engine.policies import FirstComeFirstServed
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.sampling.params import SamplingParams


def request(request_id: str, arrival: float, priority: int = 0) -> Request:
    options = RequestOptions(priority=priority)
    return Request(request_id, [1], SamplingParams(), arrival, max_model_len=9, options=options)


def test_the_order_is_that_of_arrival() -> None:
    policy = FirstComeFirstServed()
    requests = [request("c", 2.0, -9), request("b", 1.0), request("a", 1.0)]
    ordered = sorted(requests, key=lambda item: policy.order_key(item, 5.0))
    assert [item.request_id for item in ordered] == ["a", "b", "c"]
    assert max(requests, key=lambda item: policy.victim_key(item, 5.0)).request_id == "c"


def test_a_request_is_admitted_only_if_all_its_tokens_fit() -> None:
    policy = FirstComeFirstServed()
    assert policy.admit(request("a", 0.0), 3, 3)
    assert not policy.admit(request("a", 0.0), 4, 3)
