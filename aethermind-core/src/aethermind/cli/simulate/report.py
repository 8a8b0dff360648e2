"""The metrics of simulated policies as a table and as a plot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.output_files import COLORS, plot

if TYPE_CHECKING:
    from aethermind.engine.simulation import SimulationResult

__all__ = ["draw", "print_table"]


def print_table(report: dict[str, Any]) -> None:
    """Print the simulated workload and the metrics of each policy."""
    costs = report["costs"]
    print(
        f"{report['num_requests']} requests in {report['duration_s']:.0f} s, {report['max_num_seqs']} sequences and "
        f"{report['max_num_batched_tokens']} tokens a step at most, {report['num_kv_blocks']} blocks of "
        f"{report['block_size']} tokens"
    )
    print(
        f"A step takes {_time(costs['fixed_s'])} + {_time(costs['prefill_token_s'])} a prompt token + "
        f"{_time(costs['decode_sequence_s'])} a decode + {_time(costs['context_token_s'])} a token of context"
    )
    policies = report["policies"]
    rows = [("", *policies)]
    for title, show in _ROWS:
        rows.append((title, *(show(record) for record in policies.values())))
    first, *rest = console.columns(rows, indent="").splitlines()
    print("\n".join([console.style(first, "bold", sys.stdout), *rest]))
    num_rejected = max(record["num_rejected"] for record in policies.values())
    if num_rejected:
        print(
            f"{num_rejected} of {report['num_requests']} requests need more tokens than the "
            f"{report['num_kv_blocks'] * report['block_size']} that the KV cache holds, and were rejected; raise "
            "--num-kv-blocks."
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _latency(name: str) -> Any:
    return lambda record: " / ".join(_time(record[name][key]) for key in ("p50", "p90", "p99"))


def _share(name: str) -> Any:
    return lambda record: "-" if record[name] is None else f"{record[name]:.1%}"


_ROWS = (
    ("first token, p50/p90/p99", _latency("ttft")),
    ("  of urgent requests", _latency("urgent_ttft")),
    ("between tokens", _latency("tpot")),
    ("whole answer", _latency("e2e")),
    ("in time", _share("in_time")),
    ("fairness (Jain)", lambda record: "-" if record["fairness"] is None else f"{record['fairness']:.3f}"),
    ("engine busy", _share("utilisation")),
    ("running, mean", lambda record: f"{record['mean_running']:.1f}"),
    ("waiting, mean / most", lambda record: f"{record['mean_waiting']:.1f} / {record['max_waiting']}"),
    ("KV cache in use", _share("mean_kv_usage")),
    ("prompt tokens reused", _share("cached_share")),
    ("preemptions", lambda record: str(record["num_preemptions"])),
    ("rejected", lambda record: str(record["num_rejected"])),
    ("output tokens/s", lambda record: f"{record['output_tokens_per_s']:.0f}"),
)


_NUM_CLASSES = 4
_NUM_SPANS = 100


def draw(runs: Mapping[str, SimulationResult], path: Path) -> None:
    """Plot TTFT, the queue over time, and TTFT by size of request; one colour per policy."""
    with plot(path, num_axes=3) as (figure, (left, middle, right)):
        for index, (name, run) in enumerate(runs.items()):
            color = COLORS[index % len(COLORS)]
            _draw_first_tokens(left, run, name, color)
            middle.plot(*_mean_queue(run), color=color, linewidth=1.5)
            _draw_classes(right, run, index, len(runs), color)
        left.set(title="Time to first token", xlabel="seconds", ylabel="share of requests", xscale="log", ylim=(0, 1))
        middle.set(title="Requests waiting", xlabel="minutes", ylabel="requests", ylim=(0, None))
        right.set(title="Time to first token by size of request, p90", ylabel="seconds")
        right.set_xticks(range(_NUM_CLASSES), ["shortest ¼", "2nd", "3rd", "longest ¼"])
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(runs), frameon=False)


def _draw_first_tokens(axes: Any, run: SimulationResult, name: str, color: str) -> None:
    waits = sorted(
        record.first_token_s - record.trace.arrival_s for record in run.records if record.first_token_s is not None
    )
    step = max(len(waits) // 200, 1)  # no more points than the plot can resolve
    shares = [(index + 1) / len(waits) for index in range(len(waits))]
    axes.plot(waits[::step] or [0.0], shares[::step] or [0.0], color=color, linewidth=2, label=name)


def _mean_queue(run: SimulationResult) -> tuple[list[float], list[float]]:
    """Times in minutes and the mean number of waiting requests, in _NUM_SPANS equal intervals."""
    span = max(run.makespan_s, 1e-9) / _NUM_SPANS
    waited = [0.0] * (_NUM_SPANS + 1)
    ends = [*(time for time, _ in run.queue_lengths[1:]), run.makespan_s]
    for (start, length), end in zip(run.queue_lengths, ends, strict=True):
        while start < end:
            index = min(int(start / span), _NUM_SPANS - 1)
            upto = end if index == _NUM_SPANS - 1 else min(end, (index + 1) * span)
            waited[index] += length * (upto - start)
            if upto <= start:
                break
            start = upto
    minutes = [(index + 0.5) * span / 60 for index in range(_NUM_SPANS)]
    return minutes, [total / span for total in waited[:_NUM_SPANS]]


def _draw_classes(axes: Any, run: SimulationResult, index: int, count: int, color: str) -> None:
    from aethermind.engine.simulation import percentile

    done = sorted(
        (record.trace.num_prompt_tokens + record.trace.num_output_tokens, record.first_token_s - record.trace.arrival_s)
        for record in run.records
        if record.first_token_s is not None
    )
    bounds = [len(done) * part // _NUM_CLASSES for part in range(_NUM_CLASSES + 1)]
    heights = [percentile([wait for _, wait in done[start:end]], 90) for start, end in pairwise(bounds)]
    width = 0.8 / count
    places = [part - 0.4 + width * (index + 0.5) for part in range(_NUM_CLASSES)]
    axes.bar(places, heights, width=width * 0.9, color=color)
