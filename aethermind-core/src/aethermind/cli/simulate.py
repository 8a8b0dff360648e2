"""`aethermind simulate`: replays a trace under several scheduling policies; metrics as a table, JSON and a plot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import is_on_command_line, with_settings
from aethermind.cli.options import check_numbers, check_sizes
from aethermind.cli.output_files import COLORS, check_plot
from aethermind.cli.output_files import plot as new_plot
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.scheduling.decision import StepBudget
    from aethermind.engine.simulation import SimulationResult, StepCosts, TraceRequest
    from aethermind.runtime import Runtime

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = console.examples(
    'printf "TIMESTAMP,ContextTokens,GeneratedTokens\\n0,900,40\\n0.1,50,9\\n" > a.csv && aethermind simulate a.csv',
    'echo \'{"timestamp": 0, "input_length": 700, "output_length": 30}\' > a.jsonl && '
    "aethermind simulate a.jsonl --policy fcfs,deadline --json",
)

_POLICIES = "fair,fcfs,priority,shortest,deadline"
_CACHE_TOKENS = 800_000
"""Default size of the KV cache in tokens: about 45 GB of the 7B model that the default costs describe."""


@with_settings
def simulate(
    ctx: typer.Context,
    trace: Annotated[
        Path, typer.Argument(help="A CSV file in the format of Azure's traces, or JSON lines in that of Mooncake's.")
    ],
    scheduling_policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "--scheduling-policy",
            metavar="NAME[:PARAMETER=VALUE…],…",
            help="Policies to compare, separated by commas.",
        ),
    ] = _POLICIES,
    *,
    max_num_seqs: options.MaxNumSeqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens,
    max_prefill_chunk: options.MaxPrefillChunk,
    num_kv_blocks: Annotated[
        int | None,
        typer.Option(
            "--num-kv-blocks", help="Number of blocks in the KV cache.", show_default=f"{_CACHE_TOKENS} tokens"
        ),
    ] = None,
    block_size: options.BlockSize,
    cost_model: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with the cost of a step in seconds: fixed_s, prefill_token_s, decode_sequence_s, …"
        ),
    ] = None,
    calibrate: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Measure these costs with this model instead.")
    ] = None,
    device: options.Device,
    load_format: options.LoadFormat,
    limit: Annotated[int | None, typer.Option(help="Use only this many requests of the trace.", min=1)] = None,
    rate_scale: Annotated[
        float, typer.Option("--rate-scale", "--speed", help="Replay the trace this many times as fast.")
    ] = 1.0,
    urgent_share: Annotated[
        float,
        typer.Option(
            help="Fraction of requests that get priority -1, if the trace has no priorities.", min=0.0, max=1.0
        ),
    ] = 0.1,
    slack: Annotated[
        float,
        typer.Option(help="If the trace has no deadlines: multiple of a request's time alone after which it is due."),
    ] = 5.0,
    plot: options.Plot = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay a trace of requests through the scheduler and compare policies.

    Runs the engine's own scheduler and KV cache bookkeeping on a virtual clock; a cost model says how long
    each step takes. The default cost model is an estimate for a 7B model on an 80 GB accelerator.
    """
    from aethermind.engine.policies.parameters import create_policy
    from aethermind.engine.scheduling.decision import StepBudget
    from aethermind.engine.simulation import complete, read_trace
    from aethermind.hal.backend import DEFAULT_BLOCK_SIZE
    from aethermind.runtime import Runtime

    check_numbers(rate_scale=rate_scale, slack=slack)
    _check_share(urgent_share)
    check_sizes(block_size=block_size, num_kv_blocks=num_kv_blocks)
    block_size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
    if plot is not None:
        check_plot(plot)
    _check_cost_options(ctx, cost_model, calibrate)
    runtime = Runtime.boot()
    names = list(dict.fromkeys(name.strip() for name in scheduling_policy.split(",")))
    for name in names:
        create_policy(runtime.policies, name)
    budget = StepBudget(max_num_seqs, max_num_batched_tokens, max_prefill_chunk)
    requests = read_trace(trace, limit)  # errors of the trace show before costs are measured
    costs = _costs(runtime, cost_model, calibrate, device, load_format, budget)
    requests = complete(
        requests,
        rate_scale=rate_scale,
        urgent_share=urgent_share,
        slack=slack,
        costs=costs,
        chunk=max_num_batched_tokens,
    )
    num_blocks = max(_CACHE_TOKENS // block_size, 1) if num_kv_blocks is None else num_kv_blocks
    runs = {name: _run(runtime, name, requests, budget, costs, num_blocks, block_size) for name in names}
    report = {
        "trace": str(trace),
        "num_requests": len(requests),
        "duration_s": requests[-1].arrival_s,
        "rate_scale": rate_scale,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_prefill_chunk": max_prefill_chunk,
        "num_kv_blocks": num_blocks,
        "block_size": block_size,
        "costs": asdict(costs),
        "policies": {name: _record(run, costs, budget) for name, run in runs.items()},
    }
    if as_json:
        console.print_json(report)
    else:
        _print_table(report)
    if plot is not None:
        _plot_runs(runs, plot)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:  # refuses NaN, which passes typer's bounds
        raise InvalidArgumentError(f"--urgent-share is {share} but must be a number from 0 to 1.")


def _check_cost_options(ctx: typer.Context, cost_model: Path | None, calibrate: str | None) -> None:
    """Raise InvalidArgumentError for two sources of costs, and for options of a model without `--calibrate`."""
    if cost_model is not None and calibrate is not None:
        raise InvalidArgumentError("Both --cost-model and --calibrate say what a step costs; pass one of them.")
    if calibrate is None and (unused := [name for name in ("device", "load_format") if is_on_command_line(ctx, name)]):
        raise InvalidArgumentError(
            f"--{unused[0].replace('_', '-')} is about the model that --calibrate measures; add that, or leave it out."
        )


def _run(
    runtime: Runtime,
    name: str,
    requests: list[TraceRequest],
    budget: StepBudget,
    costs: StepCosts,
    num_blocks: int,
    block_size: int,
) -> SimulationResult:
    from aethermind.cli.progress import LoadProgress
    from aethermind.engine.policies.parameters import create_policy
    from aethermind.engine.simulation import simulate as run

    with LoadProgress(f"Simulating {name}") as progress:
        policy = create_policy(runtime.policies, name)
        sizes = {"num_kv_blocks": num_blocks, "block_size": block_size}
        return run(requests, policy, budget, costs, **sizes, on_progress=progress)


def _record(run: SimulationResult, costs: StepCosts, budget: StepBudget) -> dict[str, Any]:
    """Return the metrics of a run, for JSON; unknown values are None."""
    from aethermind.engine.simulation import SimulationReport

    record: dict[str, Any] = console.without_nan(asdict(SimulationReport.of(run, costs, budget.max_num_batched_tokens)))
    return record


def _costs(
    runtime: Runtime,
    cost_model: Path | None,
    calibrate: str | None,
    device: str,
    load_format: str,
    budget: StepBudget,
) -> StepCosts:
    """Return the costs of steps: those of a file, measured with a model, or the default ones."""
    from aethermind.engine.simulation import StepCosts, read_costs

    if calibrate is not None:
        return _measured(runtime, calibrate, device, load_format, budget)
    return StepCosts() if cost_model is None else read_costs(cost_model)


def _measured(runtime: Runtime, model: str, device: str, load_format: str, budget: StepBudget) -> StepCosts:
    from aethermind.cli.progress import open_llm
    from aethermind.engine.simulation.cost_model import measure_costs

    llm = open_llm(
        model,
        runtime=runtime,
        device=device,
        load_format=load_format,
        max_num_seqs=budget.max_num_seqs,
        max_num_batched_tokens=budget.max_num_batched_tokens,
        enable_prefix_caching=False,
    )
    with closing(llm):
        return measure_costs(llm.engine)


def _print_table(report: dict[str, Any]) -> None:
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


_NUM_SIZE_CLASSES = 4
_NUM_INTERVALS = 100


def _plot_runs(runs: Mapping[str, SimulationResult], path: Path) -> None:
    """Plot the distribution of TTFT, the queue's length over time, and TTFT by size of request, for each policy."""
    with new_plot(path, num_axes=3) as (figure, (left, middle, right)):
        for index, (name, run) in enumerate(runs.items()):
            color = COLORS[index % len(COLORS)]
            _plot_ttft(left, run, name, color)
            middle.plot(*_mean_queue(run), color=color, linewidth=1.5)
            _plot_ttft_by_size(right, run, index, len(runs), color)
        left.set(title="Time to first token", xlabel="seconds", ylabel="share of requests", xscale="log", ylim=(0, 1))
        middle.set(title="Requests waiting", xlabel="minutes", ylabel="requests", ylim=(0, None))
        right.set(title="Time to first token by size of request, p90", ylabel="seconds")
        right.set_xticks(range(_NUM_SIZE_CLASSES), ["shortest ¼", "2nd", "3rd", "longest ¼"])
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(runs), frameon=False)


def _plot_ttft(axes: Any, run: SimulationResult, name: str, color: str) -> None:
    waits = sorted(
        record.first_token_s - record.trace.arrival_s for record in run.records if record.first_token_s is not None
    )
    step = max(len(waits) // 200, 1)  # no more points than the plot can resolve
    shares = [(index + 1) / len(waits) for index in range(len(waits))]
    axes.plot(waits[::step] or [0.0], shares[::step] or [0.0], color=color, linewidth=2, label=name)


def _mean_queue(run: SimulationResult) -> tuple[list[float], list[float]]:
    """Return times in minutes, and the mean number of waiting requests in _NUM_INTERVALS intervals of equal length."""
    interval_s = max(run.makespan_s, 1e-9) / _NUM_INTERVALS
    request_seconds = [0.0] * (_NUM_INTERVALS + 1)
    ends = [*(time for time, _ in run.queue_lengths[1:]), run.makespan_s]
    for (start, length), end in zip(run.queue_lengths, ends, strict=True):
        while start < end:
            index = min(int(start / interval_s), _NUM_INTERVALS - 1)
            interval_end = end if index == _NUM_INTERVALS - 1 else min(end, (index + 1) * interval_s)
            request_seconds[index] += length * (interval_end - start)
            if interval_end <= start:
                break
            start = interval_end
    minutes = [(index + 0.5) * interval_s / 60 for index in range(_NUM_INTERVALS)]
    return minutes, [total / interval_s for total in request_seconds[:_NUM_INTERVALS]]


def _plot_ttft_by_size(axes: Any, run: SimulationResult, index: int, count: int, color: str) -> None:
    from aethermind.engine.simulation import percentile

    done = sorted(
        (record.trace.num_prompt_tokens + record.trace.num_output_tokens, record.first_token_s - record.trace.arrival_s)
        for record in run.records
        if record.first_token_s is not None
    )
    bounds = [len(done) * part // _NUM_SIZE_CLASSES for part in range(_NUM_SIZE_CLASSES + 1)]
    heights = [percentile([wait for _, wait in done[start:end]], 90) for start, end in pairwise(bounds)]
    width = 0.8 / count
    places = [part - 0.4 + width * (index + 0.5) for part in range(_NUM_SIZE_CLASSES)]
    axes.bar(places, heights, width=width * 0.9, color=color)
