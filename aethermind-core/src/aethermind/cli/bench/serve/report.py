"""The figures of a run as lines of text, and as a JSON object."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aethermind.cli import console

if TYPE_CHECKING:
    from aethermind.cli.bench.serve.figures import Figures
    from aethermind.engine.simulation.metrics import Latency

__all__ = ["as_record", "as_text"]


def as_record(figures: Figures) -> dict[str, Any]:
    """Figures for `--json`; what cannot be told is null."""
    record: dict[str, Any] = console.without_nan(asdict(figures))
    return record


def as_text(figures: Figures) -> str:
    """Figures for people."""
    rows: list[tuple[str, ...]] = [
        ("answers", f"{figures.num_completed} of {figures.num_requests} in {figures.duration_s:.2f} s"),
        *((("unfinished", f"{figures.num_unfinished}, interrupted"),) if figures.num_unfinished else ()),
        *(("failures" if index == 0 else "", f"{count} × {kind}") for index, (kind, count) in _numbered(figures)),
        ("requests", f"{figures.requests_per_s:.2f} a second, {figures.mean_open:.1f} open on average"),
        ("tokens", f"{figures.output_tokens_per_s:.1f} written and {figures.prompt_tokens_per_s:.1f} read a second"),
    ]
    if figures.num_good is not None:
        rows.append(("goodput", f"{figures.goodput_per_s:.2f} requests a second in time, {figures.num_good} in all"))
    times = [("milliseconds", "p50", "p90", "p99")]
    named = {
        "first token": figures.ttft,
        "per output token": figures.tpot,
        "between tokens": figures.itl,
        "whole answer": figures.e2e,
    }
    times += [(name, *_milliseconds(latency)) for name, latency in named.items()]
    return f"{console.columns(rows)}\n{console.columns(times)}"


def _numbered(figures: Figures) -> enumerate[tuple[str, int]]:
    return enumerate(figures.failures.items())


def _milliseconds(latency: Latency) -> tuple[str, str, str]:
    p50, p90, p99 = ("-" if math.isnan(one) else f"{one * 1e3:.1f}" for one in (latency.p50, latency.p90, latency.p99))
    return p50, p90, p99
