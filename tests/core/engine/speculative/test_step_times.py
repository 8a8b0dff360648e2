"""Estimates of step times between, below and beyond what was measured."""

from __future__ import annotations

import pytest

from aethermind.engine.speculative.controller import StepTimes

KNOWN = (1, 10.0)


@pytest.mark.parametrize(("size", "seconds"), [(2, 11.0), (3, 12.0), (4, 14.0), (5, 16.0), (7, 19.0)])
def test_straight_lines(size: int, seconds: float) -> None:
    times = StepTimes()
    times.observe(5, 16.0)
    times.observe(3, 12.0)
    assert times.estimate(size, KNOWN) == pytest.approx(seconds)


def test_estimates_need_a_larger_size() -> None:
    times = StepTimes()
    assert times.estimate(3, KNOWN) is None
    times.observe(4, 5.0)
    assert times.estimate(6, (4, 8.0)) is None
    assert times.estimate(6, (2, 8.0)) == 8.0, "more tokens never take less time"


def test_one_time_costs_are_not_averaged() -> None:
    times = StepTimes()
    for seconds in (9.0, 1.1, 1.0, 1.2):
        times.observe(1, seconds)
    assert times.known(1) == 1.0
    times.observe(1, 100.0)
    assert times.known(1) == pytest.approx(1.2)
    for _ in range(40):
        times.observe(1, 2.0)
    assert times.known(1) == pytest.approx(2.0, rel=0.01), "what has become slower is learnt"
