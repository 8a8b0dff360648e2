"""Figures of a run, against NumPy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.simulation import (
    RequestRecord,
    SimulationReport,
    SimulationResult,
    StepCosts,
    TraceRequest,
    jain_index,
    percentile,
)

COSTS = StepCosts(1.0, 0.0, 0.0, 0.0)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_jains_index() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert math.isnan(jain_index([]))
    assert math.isnan(percentile([], 50))


def record(arrival: float, first: float | None, end: float | None, **columns: object) -> RequestRecord:
    return RequestRecord(TraceRequest(arrival, 10, 5, **columns), first, end, num_preemptions=1, num_cached_tokens=4)


def test_a_report() -> None:
    records = [
        record(0.0, 1.0, 5.0, tenant="a", deadline_ms=5000.0, priority=-1),
        record(1.0, 4.0, 11.0, tenant="b", deadline_ms=9000.0, priority=0),
        record(2.0, None, None, tenant="b", deadline_ms=9000.0),
    ]
    run = SimulationResult(records, 1, 7, busy_s=5.0, makespan_s=10.0, running_s=15.0, waiting_s=4.0, kv_usage_s=2.5)
    report = SimulationReport.of(run, COSTS, chunk=100)
    assert (report.ttft.p50, report.urgent_ttft.p99, report.e2e.p50) == (2.0, 1.0, 7.5)
    assert report.tpot.p50 == pytest.approx((1.0 + 1.75) / 2)
    assert (report.in_time, report.utilisation, report.mean_running) == (pytest.approx(1 / 3), 0.5, 3.0)
    assert (report.mean_waiting, report.mean_kv_usage, report.num_preemptions) == (0.4, 0.5, 2)
    assert (report.cached_share, report.output_tokens_per_s) == (0.4, 1.0)
    assert report.fairness == pytest.approx(jain_index([1.0, 0.5])), "alone either takes 5 s"


def test_a_report_without_finished_requests() -> None:
    report = SimulationReport.of(SimulationResult([record(0.0, None, None)], 1), COSTS, chunk=100)
    assert all(math.isnan(value) for value in (report.ttft.p50, report.in_time, report.fairness))
