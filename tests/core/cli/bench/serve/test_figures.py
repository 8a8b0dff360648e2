"""The arithmetic of a run's figures, against NumPy and by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.cli.bench.serve.figures import Figures, Goals
from aethermind.cli.bench.serve.outcome import Outcome
from aethermind.cli.bench.serve.report import as_record, as_text

SECONDS = st.floats(0.001, 100.0)
FAILURES = st.sampled_from(["timeout", "HTTP 429", "cut off"])


@st.composite
def answers(draw: st.DrawFn) -> Outcome:
    due = draw(SECONDS)
    texts = list(due + np.cumsum(draw(st.lists(SECONDS, min_size=1, max_size=6))))
    return Outcome(due, draw(st.integers(1, 99)), len(texts) + draw(st.integers(0, 3)), texts, texts[-1])


@st.composite
def failed(draw: st.DrawFn) -> Outcome:
    return Outcome(draw(SECONDS), 3, failure=draw(FAILURES))


RUNS = st.lists(answers() | failed(), max_size=30)
GOALS = st.builds(Goals, st.none() | st.floats(1, 1e5), st.none() | st.floats(1, 1e5))


def percentiles(values: list[float]) -> list[float]:
    return list(np.percentile(values, [50, 90, 99])) if values else [math.nan] * 3


@given(RUNS, GOALS, st.integers(0, 5), SECONDS)
def test_counts_and_percentiles(outcomes: list[Outcome], goals: Goals, num_open: int, duration_s: float) -> None:
    figures = Figures.of(outcomes, num_requests=len(outcomes) + num_open, duration_s=duration_s, goals=goals)
    done = [one for one in outcomes if one.failure is None]
    assert figures.num_completed + figures.num_failed + figures.num_unfinished == figures.num_requests
    assert (figures.num_completed, figures.num_unfinished) == (len(done), num_open)
    assert sum(figures.failures.values()) == figures.num_failed
    assert list(figures.failures.values()) == sorted(figures.failures.values(), reverse=True)
    assert figures.output_tokens_per_s * duration_s == pytest.approx(sum(one.num_output_tokens for one in done))
    ttft = [one.texts_s[0] - one.due_s for one in done]
    tpot = [
        (one.texts_s[-1] - one.texts_s[0]) / (one.num_output_tokens - 1) for one in done if one.num_output_tokens > 1
    ]
    expected = {
        "ttft": ttft,
        "tpot": tpot,
        "itl": [gap for one in done for gap in np.diff(one.texts_s)],
        "e2e": [one.finished_s - one.due_s for one in done],
    }
    for name, values in expected.items():
        latency = getattr(figures, name)
        assert [latency.p50, latency.p90, latency.p99] == pytest.approx(percentiles(values), nan_ok=True, abs=1e-9)


@given(RUNS, GOALS, SECONDS)
def test_goodput_counts_answers_in_time(outcomes: list[Outcome], goals: Goals, duration_s: float) -> None:
    figures = Figures.of(outcomes, num_requests=len(outcomes), duration_s=duration_s, goals=goals)
    if goals == Goals():
        assert (figures.num_good, figures.goodput_per_s) == (None, None)
        return
    num_good = 0
    for one in outcomes:
        late = goals.ttft_ms is not None and one.failure is None and one.ttft_s * 1e3 > goals.ttft_ms
        slow = goals.tpot_ms is not None and one.tpot_s is not None and one.tpot_s * 1e3 > goals.tpot_ms
        num_good += one.failure is None and not late and not slow
    assert figures.num_good == num_good <= figures.num_completed
    assert figures.goodput_per_s == pytest.approx(num_good / duration_s)


@given(RUNS, SECONDS)
def test_stricter_goals_are_met_by_fewer(outcomes: list[Outcome], ttft_ms: float) -> None:
    strict, lax = (
        Figures.of(outcomes, num_requests=len(outcomes), duration_s=1.0, goals=Goals(limit, 100.0))
        for limit in (ttft_ms, 2 * ttft_ms)
    )
    assert strict.num_good is not None
    assert lax.num_good is not None
    assert strict.num_good <= lax.num_good


def test_what_people_read() -> None:
    outcomes = [Outcome(0.0, 8, 3, [0.1, 0.2, 0.3], 0.3), Outcome(0.0, 8, failure="timeout")]
    figures = Figures.of(outcomes, num_requests=3, duration_s=2.0, goals=Goals(ttft_ms=99.0))
    text = as_text(figures)
    for words in ("1 of 3 in 2.00 s", "1, interrupted", "1 × timeout", "0.00 requests a second in time, 0 in all"):
        assert words in text
    assert "first token       100.0" in text


def test_nothing_to_tell_is_null_and_a_dash() -> None:
    figures = Figures.of([], num_requests=0, duration_s=0.0, goals=Goals())
    assert as_record(figures)["ttft"] == {"p50": None, "p90": None, "p99": None}
    assert "first token       -" in as_text(figures)
