"""The weighted sum of waiting time, priority, size and deadline contains the orders of the other policies."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from aethermind.engine.policies import (
    EarliestDeadline,
    FirstComeFirstServed,
    PriorityWithAging,
    SchedulingPolicy,
    ShortestFirst,
    WeightedOrder,
    ignored_options,
)
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.sampling.params import SamplingParams

ZERO = {"priority_weight": 0.0, "size_weight": 0.0, "deadline_weight": 0.0}
SPEED = {"seconds_per_prompt_token": 0.01, "seconds_per_new_token": 0.5}


def requests() -> list[Request]:
    rng = random.Random(4)
    return [
        Request(
            str(number),
            [1] * rng.randint(1, 500),
            SamplingParams(max_tokens=rng.randint(1, 90)),
            rng.uniform(0.0, 100.0),
            max_model_len=1000,
            options=RequestOptions(priority=rng.randint(-5, 5), deadline_ms=rng.uniform(1e3, 1e6)),
        )
        for number in range(60)
    ]


def order(policy: SchedulingPolicy) -> list[str]:
    return [one.request_id for one in sorted(requests(), key=lambda one: policy.order_key(one, 0.0))]


@pytest.mark.parametrize(
    ("weighted", "other"),
    [
        (WeightedOrder(**ZERO), FirstComeFirstServed()),
        (WeightedOrder(**{**ZERO, "priority_weight": 7.0}), PriorityWithAging(aging_s=7.0)),
        (WeightedOrder(**{**ZERO, "size_weight": 3.0}, **SPEED), ShortestFirst(size_weight=3.0, **SPEED)),
        (
            WeightedOrder(**{**ZERO, "deadline_weight": 1.0, "waiting_weight": 1e-12}),
            EarliestDeadline(lateness_s=1e-12, seconds_per_prompt_token=1e-9, seconds_per_new_token=1e-9),
        ),
    ],
)
def test_with_one_weight_it_is_the_policy_of_that_term(weighted: WeightedOrder, other: SchedulingPolicy) -> None:
    assert order(weighted) == order(other)


@pytest.mark.parametrize(
    "later",
    [
        lambda: RequestOptions(priority=-1),
        lambda: RequestOptions(deadline_ms=1.0),
    ],
)
def test_one_that_waits_long_enough_precedes_any_later_request(later: Callable[[], RequestOptions]) -> None:
    policy = WeightedOrder(deadline_weight=1.0)

    def key(arrival: float, options: RequestOptions) -> object:
        return policy.order_key(
            Request("a", [1], SamplingParams(max_tokens=9), arrival, max_model_len=10, options=options), 0.0
        )

    waiting = key(0.0, RequestOptions(priority=3))
    assert key(1.0, later()) < waiting  # type: ignore[operator]
    assert key(1000.0, later()) > waiting  # type: ignore[operator]


def test_options_without_weight_count_as_unused() -> None:
    assert ignored_options(WeightedOrder()) == ("deadline_ms",)
    assert ignored_options(WeightedOrder(priority_weight=0.0, deadline_weight=1.0)) == ("priority",)
