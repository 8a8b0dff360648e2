"""The metrics of a load test as text, as a JSON object, and as a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.output_files import COLORS, plot

if TYPE_CHECKING:
    from aethermind.cli.bench.serve.metrics import BenchmarkMetrics, RequestOutcome
    from aethermind.engine.simulation.metrics import Latency

__all__ = ["as_record", "as_text", "draw"]


def as_record(metrics: BenchmarkMetrics) -> dict[str, Any]:
    """Metrics for `--json`; unknown values are null."""
    record: dict[str, Any] = console.without_nan(asdict(metrics))
    return record


def as_text(metrics: BenchmarkMetrics) -> str:
    """Metrics as a table."""
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
