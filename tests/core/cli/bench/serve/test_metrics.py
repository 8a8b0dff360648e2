"""The metrics of a load test, compared with NumPy and by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.cli.bench.serve.metrics import BenchmarkMetrics, LatencyObjectives, RequestOutcome, as_record, as_text

SECONDS = st.floats(0.001, 100.0)
FAILURES = st.sampled_from(["timeout", "HTTP 429", "cut off"])


@st.composite
def answers(draw: st.DrawFn) -> RequestOutcome:
    due = draw(SECONDS)
    texts = list(due + np.cumsum(draw(st.lists(SECONDS, min_size=1, max_size=6))))
    return RequestOutcome(due, draw(st.integers(1, 99)), len(texts) + draw(st.integers(0, 3)), texts, texts[-1])


@st.composite
def failed(draw: st.DrawFn) -> RequestOutcome:
    return RequestOutcome(draw(SECONDS), 3, failure=draw(FAILURES))


RUNS = st.lists(answers() | failed(), max_size=30)
GOALS = st.builds(LatencyObjectives, st.none() | st.floats(1, 1e5), st.none() | st.floats(1, 1e5))


def percentiles(values: list[float]) -> list[float]:
    return list(np.percentile(values, [50, 90, 99])) if values else [math.nan] * 3


@given(RUNS, GOALS, st.integers(0, 5), SECONDS)
def test_counts_and_percentiles(
    outcomes: list[RequestOutcome], objectives: LatencyObjectives, num_open: int, duration_s: float
) -> None:
    metrics = BenchmarkMetrics.of(
        outcomes, num_requests=len(outcomes) + num_open, duration_s=duration_s, objectives=objectives
    )
    done = [one for one in outcomes if one.failure is None]
    assert metrics.num_completed + metrics.num_failed + metrics.num_unfinished == metrics.num_requests
    assert (metrics.num_completed, metrics.num_unfinished) == (len(done), num_open)
    assert sum(metrics.failures.values()) == metrics.num_failed
    assert list(metrics.failures.values()) == sorted(metrics.failures.values(), reverse=True)
    assert metrics.output_tokens_per_s * duration_s == pytest.approx(sum(one.num_output_tokens for one in done))
    ttft = [one.chunk_times_s[0] - one.due_s for one in done]
    tpot = [
        (one.chunk_times_s[-1] - one.chunk_times_s[0]) / (one.num_output_tokens - 1)
        for one in done
        if one.num_output_tokens > 1
    ]
    expected = {
        "ttft": ttft,
        "tpot": tpot,
        "itl": [gap for one in done for gap in np.diff(one.chunk_times_s)],
        "e2e": [one.finished_s - one.due_s for one in done],
    }
    for name, values in expected.items():
        latency = getattr(metrics, name)
        assert [latency.p50, latency.p90, latency.p99] == pytest.approx(percentiles(values), nan_ok=True, abs=1e-9)


@given(RUNS, GOALS, SECONDS)
def test_goodput_counts_answers_that_meet_the_objectives(
    outcomes: list[RequestOutcome], objectives: LatencyObjectives, duration_s: float
) -> None:
    metrics = BenchmarkMetrics.of(outcomes, num_requests=len(outcomes), duration_s=duration_s, objectives=objectives)
    if objectives == LatencyObjectives():
        assert (metrics.num_good, metrics.goodput_per_s) == (None, None)
        return
    num_good = 0
    for one in outcomes:
        late = objectives.ttft_ms is not None and one.failure is None and one.ttft_s * 1e3 > objectives.ttft_ms
        slow = objectives.tpot_ms is not None and one.tpot_s is not None and one.tpot_s * 1e3 > objectives.tpot_ms
        num_good += one.failure is None and not late and not slow
    assert metrics.num_good == num_good <= metrics.num_completed
    assert metrics.goodput_per_s == pytest.approx(num_good / duration_s)


@given(RUNS, SECONDS)
def test_stricter_objectives_are_met_by_fewer_answers(outcomes: list[RequestOutcome], ttft_ms: float) -> None:
    strict, lax = (
        BenchmarkMetrics.of(
            outcomes, num_requests=len(outcomes), duration_s=1.0, objectives=LatencyObjectives(limit, 100.0)
        )
        for limit in (ttft_ms, 2 * ttft_ms)
    )
    assert strict.num_good is not None
    assert lax.num_good is not None
    assert strict.num_good <= lax.num_good


def test_metrics_as_text() -> None:
    outcomes = [RequestOutcome(0.0, 8, 3, [0.1, 0.2, 0.3], 0.3), RequestOutcome(0.0, 8, failure="timeout")]
    metrics = BenchmarkMetrics.of(outcomes, num_requests=3, duration_s=2.0, objectives=LatencyObjectives(ttft_ms=99.0))
    text = as_text(metrics)
    for words in ("1 of 3 in 2.00 s", "1, interrupted", "1 × timeout", "0.00 requests a second within SLO, 0 in all"):
        assert words in text
    assert "first token       100.0" in text


def test_missing_values_are_null_in_json_and_a_dash_in_text() -> None:
    metrics = BenchmarkMetrics.of([], num_requests=0, duration_s=0.0, objectives=LatencyObjectives())
    assert as_record(metrics)["ttft"] == {"p50": None, "p90": None, "p99": None}
    assert "first token       -" in as_text(metrics)
