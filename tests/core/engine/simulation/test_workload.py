"""What is added to a trace."""

from __future__ import annotations

import pytest

from aethermind.engine.simulation import StepCosts, TraceRequest, complete

COSTS = StepCosts(1.0, 0.0, 0.0, 0.0)
REST = {"slack": 3.0, "costs": COSTS, "chunk": 100}


def test_urgent_requests_are_spread_and_deadlines_follow_the_work() -> None:
    trace = [TraceRequest(float(index), 100, 5) for index in range(10)]
    done = complete(trace, rate_scale=2.0, urgent_share=0.3, **REST)
    assert [one.priority for one in done] == [0, 0, 0, -1, 0, 0, -1, 0, 0, -1]
    assert [one.arrival_s for one in done] == [index / 2 for index in range(10)]
    assert [one.deadline_ms for one in done] == [pytest.approx(15_000.0)] * 10


def test_values_of_the_trace_take_precedence() -> None:
    trace = [TraceRequest(0.0, 1, 1, priority=4, deadline_ms=7.0), TraceRequest(0.0, 1, 1)]
    done = complete(trace, rate_scale=1.0, urgent_share=1.0, **REST)
    assert [(one.priority, one.deadline_ms) for one in done] == [(4, 7.0), (None, 3000.0)]
