"""Measured costs of preemption by swapping and by recomputation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aethermind.cache import NoSwapStore
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts, TimedSwapStore


class Store:
    """Takes a second a block to save and two to load."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dropped: list[str] = []

    def clock(self) -> float:
        return self.now

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        self.now += len(blocks)
        return True

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        self.now += 2 * len(blocks)

    def drop(self, seq_id: str) -> None:
        self.dropped.append(seq_id)


def test_a_move_goes_out_and_back() -> None:
    costs = SwapVsRecomputeCosts(seconds_per_token=1.0, seconds_per_byte=0.125)
    assert costs.prefers_swap(num_tokens=26, num_bytes=100)
    assert not costs.prefers_swap(num_tokens=25, num_bytes=100)


def test_costs_follow_what_is_observed() -> None:
    costs = SwapVsRecomputeCosts(seconds_per_token=1.0, seconds_per_byte=1.0)
    for _ in range(100):
        costs.observe_prefill(10, 20.0)
        costs.observe_move(4, 1.0)
    assert costs.seconds_per_token == pytest.approx(2.0, rel=1e-3)
    assert costs.seconds_per_byte == pytest.approx(0.25, rel=1e-3)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_estimate_of_a_slow_swap_decays() -> None:
    clock = Clock()
    costs = SwapVsRecomputeCosts(seconds_per_token=1.0, seconds_per_byte=0.01, clock=clock)
    assert costs.prefers_swap(num_tokens=10, num_bytes=100)
    costs.observe_move(1, 100.0)  # a disturbed machine: 10 s a byte from now on, where 0.05 would do
    assert not costs.prefers_swap(num_tokens=10, num_bytes=100)
    refusals = 0
    while not costs.prefers_swap(num_tokens=10, num_bytes=100):
        clock.now += 10.0
        refusals += 1
    assert 10 < refusals < 60  # minutes: neither at once nor never
    costs.observe_move(100, 1.0)
    assert costs.seconds_per_byte < 0.1
    assert costs.prefers_swap(num_tokens=10, num_bytes=50)


def test_swaps_that_remain_slow_are_tried_rarely() -> None:
    clock = Clock()
    costs = SwapVsRecomputeCosts(seconds_per_token=1.0, seconds_per_byte=1.0, clock=clock)
    tries = 0
    for _ in range(3600):
        clock.now += 1.0
        if costs.prefers_swap(num_tokens=10, num_bytes=100):
            tries += 1
            costs.observe_move(100, 100.0)
            costs.observe_move(100, 100.0)
    assert 5 <= tries <= 3600 / 100  # twenty times dearer: at most one in some hundred seconds


def test_the_estimate_does_not_decay_without_refused_swaps() -> None:
    clock = Clock()
    costs = SwapVsRecomputeCosts(seconds_per_token=1.0, seconds_per_byte=1.0, clock=clock)
    costs.observe_move(1, 1.0)
    clock.now += 3600.0
    assert not costs.prefers_swap(num_tokens=10, num_bytes=100)


def test_a_timed_store_measures_its_moves() -> None:
    costs, store = SwapVsRecomputeCosts(seconds_per_byte=0.0), Store()
    timed = TimedSwapStore(store, 10, costs, store.clock)
    assert timed.save("a", [1, 2])
    assert costs.seconds_per_byte == pytest.approx(0.01)
    timed.load("a", [3])
    assert costs.seconds_per_byte == pytest.approx(0.029)
    timed.drop("a")
    assert store.dropped == ["a"]


def test_a_full_store_changes_no_estimate() -> None:
    costs = SwapVsRecomputeCosts(seconds_per_byte=0.5)
    assert not TimedSwapStore(NoSwapStore(), 10, costs, lambda: 0.0).save("a", [1])
    assert costs.seconds_per_byte == 0.5
