"""WaitingQueue against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.policies import EarliestDeadline, FirstComeFirstServed
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.engine.scheduling.scheduler import WaitingQueue
from aethermind.sampling.params import SamplingParams


def request(name: str, arrival: float, deadline_ms: float | None = None) -> Request:
    options = RequestOptions(deadline_ms=deadline_ms)
    return Request(name, [1], SamplingParams(), arrival, max_model_len=9, options=options)


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "remove"]), st.integers(0, 50), st.integers(1, 20))))
def test_the_queue_equals_a_sorted_list(calls: list[tuple[str, int, int]]) -> None:
    policy = EarliestDeadline(lateness_s=7.0)
    queue, model = WaitingQueue(policy), list[Request]()
    for now, (call, number, seconds) in enumerate(calls):
        if call == "add":
            model.append(request(str(now), now, seconds * 1e3))
            queue.add(model[-1], now)
        elif model:
            expected = min(model, key=lambda one: policy.order_key(one, now))
            victim = expected if call == "take" else model[number % len(model)]
            assert queue.first(now) is expected
            queue.remove(victim)
            model.remove(victim)
        assert len(queue) == len(model)
        assert set(queue) == set(model)


def test_a_request_can_be_added_again_and_ids_can_repeat() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    one, other = request("a", 1.0), request("a", 1.0)
    for added in (one, other, one):
        queue.add(added, 1.0)
        assert added in queue
        assert queue.first(2.0) is added
        queue.remove(added)
    assert queue.first(2.0) is None
    assert one not in queue
    with pytest.raises(KeyError):
        queue.remove(one)


def test_removed_requests_do_not_accumulate() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    queue.add(request("first", 0.0), 0.0)
    for index in range(500):
        later = request(str(index), 1.0)
        queue.add(later, 1.0)
        queue.remove(later)
    assert len(queue._heap) < 50
