"""`aethermind simulate`: replays a trace under each policy and prints their metrics."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import is_on_command_line, with_settings
from aethermind.cli.options import check_numbers, check_sizes
from aethermind.cli.output_files import check_plot
from aethermind.cli.simulate.report import draw, print_table
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
        print_table(report)
    if plot is not None:
        draw(runs, plot)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:  # refuses NaN, which passes typer's bounds
        raise InvalidArgumentError(f"--urgent-share is {share} but must be a number from 0 to 1.")


def _check_cost_options(ctx: typer.Context, cost_model: Path | None, calibrate: str | None) -> None:
    """InvalidArgumentError for two sources of costs, or for options of a model that is not measured."""
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
    """A run's metrics, for JSON; unknown values are null."""
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
    """The costs of a file, or measured with a model, or else the default ones."""
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
