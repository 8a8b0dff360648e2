"""A store that is slower than computing is not asked, until that may have changed."""

from __future__ import annotations

from aethermind.engine.kv_offload.costs import FetchCosts
from aethermind.engine.scheduling.preemption import MeasuredCosts


def test_what_is_known_decides_and_is_believed_for_a_while() -> None:
    now = [0.0]
    costs = FetchCosts(MeasuredCosts(seconds_per_token=1e-3), lambda: now[0])
    assert costs.compute_seconds(100) == 0.1
    assert costs.is_worth_fetching(10**12, 1), "nothing is known yet"
    costs.observe(10**6, 1.0)
    assert costs.is_worth_fetching(10**6, 500), "computing takes half as long: not worth disturbing others"
    assert not costs.is_worth_fetching(10**6, 499)
    now[0] = 30.0
    assert costs.is_worth_fetching(10**6, 250)
    assert not costs.is_worth_fetching(10**6, 249)
    now[0] = 600.0
    assert costs.is_worth_fetching(10**6, 1)
    for _ in range(30):
        costs.observe(10**6, 0.1)
    assert costs.is_worth_fetching(10**6, 51)
    assert not costs.is_worth_fetching(10**6, 49)
