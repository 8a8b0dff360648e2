"""Metrics of a load test: measured by the client, summarised, and shown as text, as a JSON object and as a plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from aethermind.cli import console
from aethermind.cli.output_files import COLORS, plot
from aethermind.engine.simulation.metrics import Latency

__all__ = ["BenchmarkMetrics", "LatencyObjectives", "LoadTest", "RequestOutcome", "as_record", "as_text", "draw"]


@dataclass(slots=True)
class RequestOutcome:
    """The measured times of one request, in seconds of one clock. Mutable while it is recorded.

    `due_s` is the time at which it should have been sent. The delay of a client that sends late counts as waiting time,
    which avoids coordinated omission.
    `chunk_times_s` has the arrival time of each streamed chunk of text. `num_output_tokens` is the server's count, else
    the number of chunks. `failure` is the kind of failure, such as "HTTP 429"; None if the request was answered.
    """

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    chunk_times_s: list[float] = field(default_factory=list)
    finished_s: float = 0.0
    failure: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token (TTFT)."""
        return self.chunk_times_s[0] - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first (TPOT); None for a single token."""
        num_later = self.num_output_tokens - 1
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / num_later if num_later > 0 else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency, from `due_s` to the end of the answer."""
        return self.finished_s - self.due_s


@dataclass(slots=True)
class LoadTest:
    """A load test and its outcomes so far. Mutable: an interrupted test keeps the outcomes that it has."""

    url: str
    model: str | None
    """None until it is known, for the first model that the server lists."""
    endpoint: str
    api_key: str | None
    outcomes: list[RequestOutcome] = field(default_factory=list)
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LatencyObjectives:
    """Service level objectives of an answer, in milliseconds; None is no objective."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def are_met(self, outcome: RequestOutcome) -> bool:
        """Whether an answer meets them. A single token has no TPOT and meets any."""
        meets_ttft = self.ttft_ms is None or outcome.ttft_s * 1e3 <= self.ttft_ms
        return meets_ttft and (self.tpot_ms is None or (outcome.tpot_s or 0.0) * 1e3 <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class BenchmarkMetrics:
    """Metrics of a load test. Times are in seconds and of answers only; NaN where there is no answer."""

    num_requests: int
    num_completed: int
    num_failed: int
    num_unfinished: int
    """Requests not sent or not answered when the test was interrupted."""
    failures: dict[str, int]
    """Count of each kind of failure, the most frequent first."""
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    mean_open: float
    """Mean number of open requests."""
    num_good: int | None
    goodput_per_s: float | None
    """Answers per second that met the objectives (DistServe, Zhong et al. 2024); None without objectives."""
    ttft: Latency
    tpot: Latency
    """Time per output token, the mean of each answer."""
    itl: Latency
    """Inter-token latency: between consecutive streamed chunks, over all answers."""
    e2e: Latency

    @classmethod
    def of(
        cls, outcomes: Sequence[RequestOutcome], *, num_requests: int, duration_s: float, objectives: LatencyObjectives
    ) -> BenchmarkMetrics:
        """Summarise the outcomes of a test of `num_requests` requests that took `duration_s` seconds."""
        done = [outcome for outcome in outcomes if outcome.failure is None]
        failures = Counter(outcome.failure for outcome in outcomes if outcome.failure is not None)
        num_good = sum(map(objectives.are_met, done)) if objectives else None
        prompt_tokens = sum(outcome.num_prompt_tokens for outcome in done)
        output_tokens = sum(outcome.num_output_tokens for outcome in done)
        seconds = max(duration_s, 1e-9)
        return cls(
            num_requests=num_requests,
            num_completed=len(done),
            num_failed=len(outcomes) - len(done),
            num_unfinished=num_requests - len(outcomes),
            failures=dict(failures.most_common()),
            duration_s=duration_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            requests_per_s=len(done) / seconds,
            prompt_tokens_per_s=prompt_tokens / seconds,
            output_tokens_per_s=output_tokens / seconds,
            mean_open=sum(outcome.e2e_s for outcome in done) / seconds,
            num_good=num_good,
            goodput_per_s=None if num_good is None else num_good / seconds,
            ttft=Latency.of([outcome.ttft_s for outcome in done]),
            tpot=Latency.of([tpot for outcome in done if (tpot := outcome.tpot_s) is not None]),
            itl=Latency.of([later - earlier for outcome in done for earlier, later in pairwise(outcome.chunk_times_s)]),
            e2e=Latency.of([outcome.e2e_s for outcome in done]),
        )


def as_record(metrics: BenchmarkMetrics) -> dict[str, Any]:
    """Return metrics for `--json`; unknown values are None."""
    record: dict[str, Any] = console.without_nan(asdict(metrics))
    return record


def as_text(metrics: BenchmarkMetrics) -> str:
    """Return metrics as tables of text."""
    rows: list[tuple[str, ...]] = [
        ("answers", f"{metrics.num_completed} of {metrics.num_requests} in {metrics.duration_s:.2f} s"),
        *((("unfinished", f"{metrics.num_unfinished}, interrupted"),) if metrics.num_unfinished else ()),
        *(
            ("failures" if index == 0 else "", f"{count} × {kind}")
            for index, (kind, count) in _numbered_failures(metrics)
        ),
        ("requests", f"{metrics.requests_per_s:.2f} a second, {metrics.mean_open:.1f} in flight on average"),
        (
            "throughput",
            f"{metrics.output_tokens_per_s:.1f} output, {metrics.prompt_tokens_per_s:.1f} prompt tokens a second",
        ),
    ]
    if metrics.num_good is not None:
        rows.append(("goodput", f"{metrics.goodput_per_s:.2f} requests a second within SLO, {metrics.num_good} in all"))
    times = [("milliseconds", "p50", "p90", "p99")]
    named = {
        "first token": metrics.ttft,
        "per output token": metrics.tpot,
        "between tokens": metrics.itl,
        "end to end": metrics.e2e,
    }
    times += [(name, *_milliseconds(latency)) for name, latency in named.items()]
    return f"{console.columns(rows)}\n{console.columns(times)}"


def _numbered_failures(metrics: BenchmarkMetrics) -> enumerate[tuple[str, int]]:
    return enumerate(metrics.failures.items())


def _milliseconds(latency: Latency) -> tuple[str, str, str]:
    p50, p90, p99 = (
        "-" if math.isnan(seconds) else f"{seconds * 1e3:.1f}" for seconds in (latency.p50, latency.p90, latency.p99)
    )
    return p50, p90, p99


_NUM_BINS = 60


def draw(outcomes: Sequence[RequestOutcome], path: Path) -> None:
    """Plot the cumulative distributions of TTFT and TPOT, and the output tokens per second over time."""
    done = [outcome for outcome in outcomes if outcome.failure is None]
    with plot(path, num_axes=3) as (_, (left, middle, right)):
        _plot_cdf(left, [outcome.ttft_s for outcome in done])
        _plot_cdf(middle, [tpot * 1e3 for outcome in done if (tpot := outcome.tpot_s) is not None])
        _draw_rate(right, done)
        left.set(title="Time to first token", xlabel="seconds", ylabel="fraction of answers", ylim=(0, 1))
        middle.set(title="Time per output token", xlabel="milliseconds", ylabel="fraction of answers", ylim=(0, 1))
        right.set(title="Output", xlabel="seconds", ylabel="tokens a second", ylim=(0, None))


def _plot_cdf(axes: Any, values: list[float]) -> None:
    shares = [(index + 1) / len(values) for index in range(len(values))]
    axes.step(sorted(values) or [0.0], shares or [0.0], where="post", color=COLORS[0], linewidth=2)


def _draw_rate(axes: Any, done: Sequence[RequestOutcome]) -> None:
    """Plot tokens per second; the tokens of an answer are divided equally among its streamed chunks."""
    if not done:
        return
    start = min(outcome.due_s for outcome in done)
    bin_s = max(max(outcome.finished_s for outcome in done) - start, 1e-9) / _NUM_BINS
    tokens = [0.0] * _NUM_BINS
    for outcome in done:
        for time in outcome.chunk_times_s:
            tokens[min(int((time - start) / bin_s), _NUM_BINS - 1)] += outcome.num_output_tokens / len(
                outcome.chunk_times_s
            )
    middles = [(index + 0.5) * bin_s for index in range(_NUM_BINS)]
    axes.plot(middles, [count / bin_s for count in tokens], color=COLORS[0], linewidth=1.5)
