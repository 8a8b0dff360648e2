"""A store that is slower than computing is not used until the estimate has decayed."""

from __future__ import annotations

from aethermind.engine.kv_offload.offload import FetchCosts
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts


def test_the_fetch_estimate_decides_and_decays() -> None:
    now = [0.0]
    costs = FetchCosts(SwapVsRecomputeCosts(seconds_per_token=1e-3), lambda: now[0])
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
