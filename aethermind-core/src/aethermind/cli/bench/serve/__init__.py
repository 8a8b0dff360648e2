"""`aethermind bench serve`: a load test of a server, measured by its client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.options import check_numbers
from aethermind.cli.output_files import check_plot
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.cli.bench.serve.metrics import LoadTest
    from aethermind.cli.bench.serve.workload import BenchRequest

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = console.examples(
    "aethermind bench serve",
    "aethermind bench serve --request-rate 20 --num-prompts 40 --slo-ttft-ms 200 --slo-tpot-ms 50",
    "aethermind bench serve --concurrency 4 --num-prompts 8 --endpoint chat --json",
    'printf "TIMESTAMP,ContextTokens,GeneratedTokens\\n0,90,9\\n5,50,9\\n" > a.csv && '
    "aethermind bench serve --trace a.csv --rate-scale 10",
)

_NUM_PROMPTS = 64
_CONCURRENCY = 8
_INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@with_settings
def serve(
    url: Annotated[str, typer.Option(help="The server's URL.")] = "http://127.0.0.1:8000",
    served_model_name: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model's name on the server.", show_default="the first it lists"),
    ] = None,
    api_key: options.ApiKeyToSend = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    num_prompts: Annotated[
        int | None, typer.Option(help="Number of requests.", min=1, show_default=str(_NUM_PROMPTS))
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests open at a time.", min=1, show_default=str(_CONCURRENCY))
    ] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(help="Instead of --concurrency: requests per second, as a Poisson process."),
    ] = None,
    prompt_tokens: options.PromptTokens = 128,
    output_tokens: options.OutputTokens = 64,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay arrival times and lengths of this trace instead; see `aethermind simulate`."),
    ] = None,
    rate_scale: Annotated[float, typer.Option(help="Replay the trace this many times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Use only this many requests of the trace.", min=1)] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of arrivals and prompts; the server may have the prompts of a repeated seed in its cache."
        ),
    ] = 0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: longest time to first token.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: longest time per further token.")] = None,
    request_timeout: Annotated[float, typer.Option(help="Seconds that one answer may take.")] = 600.0,
    plot: options.Plot = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a server under load, as its clients see it.

    Works with any server that has OpenAI's API. Prompts are random token ids and answers have exactly
    the requested length, if the server takes token ids and ignore_eos. Ctrl-C prints the results so far.
    """
    from aethermind.cli.bench.serve.metrics import (
        BenchmarkMetrics,
        LatencyObjectives,
        LoadTest,
        as_record,
        as_text,
        draw,
    )

    check_numbers(
        request_rate=request_rate,
        rate_scale=rate_scale,
        slo_ttft_ms=slo_ttft_ms,
        slo_tpot_ms=slo_tpot_ms,
        request_timeout=request_timeout,
    )
    if endpoint not in ("completions", "chat"):
        raise InvalidArgumentError(f"--endpoint is {endpoint!r} but should be completions or chat.")
    if plot is not None:
        check_plot(plot)
    is_trace_changed = limit is not None or rate_scale != 1.0
    _check_arrivals(
        trace, is_trace_changed, num_prompts=num_prompts, concurrency=concurrency, request_rate=request_rate
    )
    if trace is None and request_rate is None:
        concurrency = concurrency or _CONCURRENCY
    if trace is not None:
        requests, workload = _traced(trace, limit, rate_scale, seed)
    else:
        sizes = (num_prompts or _NUM_PROMPTS, prompt_tokens, output_tokens)
        requests, workload = _random(sizes, concurrency, request_rate, seed)
    test = LoadTest(url, served_model_name, endpoint, api_key[0] if api_key else None)
    is_complete = _measure(test, requests, concurrency, request_timeout)
    objectives = LatencyObjectives(slo_ttft_ms, slo_tpot_ms)
    metrics = BenchmarkMetrics.of(
        test.outcomes, num_requests=len(requests), duration_s=test.duration_s, objectives=objectives
    )
    if as_json:
        used = {
            "url": url,
            "model": test.model,
            "endpoint": endpoint,
            "trace": trace,
            "rate_scale": rate_scale,
            "concurrency": concurrency,
            "request_rate": request_rate,
            "slo_ttft_ms": slo_ttft_ms,
            "slo_tpot_ms": slo_tpot_ms,
            "seed": seed,
        }
        console.print_json({**used, **as_record(metrics)})
    else:
        print(f"{test.model} at {url}: {workload}")
        print(as_text(metrics))
    if plot is not None:
        draw(test.outcomes, plot)
    if not (is_complete and metrics.num_completed):
        raise typer.Exit(1 if is_complete else _INTERRUPTED)


def _traced(trace: Path, limit: int | None, rate_scale: float, seed: int) -> tuple[Sequence[BenchRequest], str]:
    """Return the requests of a trace, and a description of the workload."""
    from aethermind.cli.bench.serve.workload import requests_of_trace
    from aethermind.engine.simulation.trace import read_trace

    requests = requests_of_trace(read_trace(trace, limit), rate_scale=rate_scale, seed=seed)
    return requests, f"{len(requests)} requests of {trace}"


def _random(
    sizes: tuple[int, int, int], concurrency: int | None, request_rate: float | None, seed: int
) -> tuple[Sequence[BenchRequest], str]:
    """Return random requests, and a description of the workload.

    `sizes` are the number of requests and their numbers of prompt and output tokens.
    """
    from aethermind.cli.bench.serve.workload import random_requests

    count, prompt_tokens, output_tokens = sizes
    requests = random_requests(count, prompt_tokens, output_tokens, request_rate=request_rate, seed=seed)
    pace = f"{concurrency} at a time" if request_rate is None else f"{request_rate:g} a second"
    return requests, f"{count} × ({prompt_tokens} + {output_tokens} tokens), {pace}"


def _measure(test: LoadTest, requests: Sequence[BenchRequest], concurrency: int | None, limit_s: float) -> bool:
    """Run the load test. Returns whether it completed: False after Ctrl-C, if there are outcomes by then."""
    from aethermind.cli.progress import LoadProgress

    try:
        from aethermind.cli.bench.serve.client import measure
    except ImportError as error:
        raise SettingsError(
            f"`bench serve` needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`."
        ) from None

    try:
        with LoadProgress("Answers") as progress:
            asyncio.run(measure(test, requests, concurrency=concurrency, limit_s=limit_s, on_progress=progress))
    except KeyboardInterrupt:
        if not test.outcomes:
            raise
        return False
    return True


def _check_arrivals(trace: Path | None, is_trace_changed: bool, **given: float | None) -> None:
    """Raise InvalidArgumentError unless only one of a trace, a concurrency and a rate is given."""
    if trace is None and is_trace_changed:
        raise InvalidArgumentError(
            "--limit and --rate-scale are about a trace; pass it with --trace, or leave them out."
        )
    flags = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if trace is not None and flags:
        raise InvalidArgumentError(f"--trace says how many requests come and when; leave {' and '.join(flags)} out.")
    if {"--concurrency", "--request-rate"} <= set(flags):
        raise InvalidArgumentError("Both --concurrency and --request-rate say when requests come; pass one of them.")
