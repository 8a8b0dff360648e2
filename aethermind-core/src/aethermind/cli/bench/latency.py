"""`aethermind bench latency`: prefill and decode of one batch, compared with the roofline."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from aethermind.cli import console, options
from aethermind.cli.bench import limits
from aethermind.cli.flags import with_settings
from aethermind.cli.settings import DeviceOptions, ExecutionOptions

if TYPE_CHECKING:
    from aethermind.engine.observation.roofline import StepShape
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.hal.backend import MeasuredLimits
    from aethermind.llm import LLM

__all__ = ["BatchTiming", "EXAMPLES", "Phases", "latency", "split_phases", "summarize"]

EXAMPLES = console.examples(
    "aethermind bench latency",
    "aethermind bench latency --prompt-tokens 64 --output-tokens 32 --repeat 1 --json",
    "aethermind bench latency --model demo --load-format dummy --batch 4 --threads 2",
)

WARM_UP_TOKENS = 4


@with_settings
def latency(
    model: options.Model = None,
    *,
    load_format: options.LoadFormat,
    adapters: options.Adapters,
    prompt_tokens: options.PromptTokens = 512,
    output_tokens: options.OutputTokens = 128,
    batch: options.Batch = 1,
    repeat: options.Repeat = 3,
    device_options: DeviceOptions,
    kv_cache_dtype: options.KvCacheDType,
    num_threads: options.NumThreads,
    max_num_batched_tokens: options.MaxNumBatchedTokens,
    fallback: options.Fallback,
    deterministic: options.Deterministic,
    execution: ExecutionOptions,
    as_json: options.AsJson = False,
) -> None:
    """Measure prefill, decode and time to first token of one batch.

    Prefill and decode are also given as fractions of the roofline limit: for each operator the time to
    read its weights, keys and values from memory or the time of its arithmetic, whichever is longer, at
    the bandwidth and peaks measured just before and after the runs. An --adapter applies to all requests.
    """
    from aethermind.cli.progress import open_llm
    from aethermind.engine.loading.weight_formats import format_uses

    adapter = options.chosen_adapter(adapters)
    llm = open_llm(
        options.chosen_model(model),
        device_options,
        execution,
        load_format=load_format,
        adapters=adapters,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=num_threads,
        max_num_batched_tokens=max_num_batched_tokens,
        fallback=fallback,
        deterministic=deterministic,
        max_model_len=prompt_tokens + output_tokens,
        num_kv_blocks=limits.num_kv_blocks_of(device_options.device, batch, prompt_tokens + output_tokens),
        max_num_seqs=batch,
        enable_prefix_caching=False,
    )
    with closing(llm):
        _run(llm, prompt_tokens, min(output_tokens, WARM_UP_TOKENS), batch, adapter)
        peak_memory_bytes = _peak_memory_bytes()  # read before the limits are measured, which allocates memory
        runs, min_s, measured = _measure(llm, (prompt_tokens, output_tokens, batch, adapter), repeat, num_threads)
        report = {
            "model": llm.info.model,
            "device": llm.info.device,
            "dtype": llm.info.dtype,
            "weight_formats": [console.weight_format_record(use) for use in format_uses(llm.engine.compiled)],
            "num_threads": llm.info.num_threads,
            "load_format": load_format,
            "adapter": adapter or None,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "batch": batch,
            "repeat": repeat,
            **summarize(runs, min_s),
            "load_s": llm.info.load_s,
            "peak_memory_bytes": peak_memory_bytes,
            "weight_bytes": llm.info.weight_bytes,
            "limits": limits.as_record(measured),
        }
    if as_json:
        console.print_json(report)
    else:
        _print_report(report, measured)


class Phases(NamedTuple):
    """Seconds until every request has its first token (prefill), and from then on (decode); None if unknown."""

    prefill: float | None
    decode: float | None


@dataclass(slots=True)
class BatchTiming:
    """Recorded times of one batch, in seconds of `time.perf_counter`. Mutable.

    `counts` are the tokens of each request so far; `shapes` the shapes of the steps, if an observer recorded them.
    """

    num_requests: int
    prompt_tokens: int
    started_s: float = float("inf")
    counts: dict[str, int] = field(default_factory=dict)
    first_tokens_s: dict[str, float] = field(default_factory=dict)
    num_tokens_at_prefill_end: int = 0
    finished_s: float = 0.0
    shapes: list[StepShape] = field(default_factory=list)

    def record(self, output: RequestOutput, now: float) -> None:
        """Record one output of the engine, received at `now`."""
        self.started_s = min(self.started_s, output.metrics.arrival_s)
        self.counts[output.request_id] = output.outputs[0].num_tokens
        if output.request_id not in self.first_tokens_s and output.metrics.first_token_s is not None:
            self.first_tokens_s[output.request_id] = output.metrics.first_token_s
            self.num_tokens_at_prefill_end = sum(self.counts.values())
        self.finished_s = now

    @property
    def ttft_s(self) -> float:
        """Median time to first token of the requests, in seconds."""
        return median(self.first_tokens_s.values()) - self.started_s

    @property
    def prefill_s(self) -> float:
        """Seconds from the arrival of the batch to the first token of the request that gets it last."""
        return max(self.first_tokens_s.values()) - self.started_s

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.num_requests * self.prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second of the batch after prefill; None if no token is generated then."""
        num_tokens = sum(self.counts.values()) - self.num_tokens_at_prefill_end
        return num_tokens / self.decode_s if num_tokens > 0 and self.decode_s > 0 else None

    @property
    def decode_s(self) -> float:
        """Seconds from the end of prefill to the last token."""
        return self.finished_s - max(self.first_tokens_s.values())


def _measure(
    llm: LLM, run_arguments: tuple[int, int, int, str], repeat: int, num_threads: int | None
) -> tuple[list[BatchTiming], Phases, MeasuredLimits | None]:
    """Time `repeat` runs, between two measurements of the device's limits. `run_arguments` are the arguments of `_run`.

    Returns the runs, the roofline's minimum time of each phase, and the average of the limits.
    """
    from aethermind.engine.loading.model_graph import GraphKey
    from aethermind.engine.observation.roofline import min_seconds

    compiled = llm.engine.compiled
    backend = compiled.open_device.backend
    # An observer disables padding and asynchronous scheduling, so the shapes come from a separate, observed run.
    shapes = _run(llm, *run_arguments).shapes if llm.engine.pipeline.runs_ahead else []
    before = limits.measure_limits(backend, num_threads)
    runs = [_run(llm, *run_arguments, is_observed=not shapes) for _ in range(repeat)]
    measured = limits.average(before, limits.measure_limits(backend, num_threads))
    has_adapter = bool(run_arguments[-1])
    plan = compiled.compile(GraphKey(has_adapters=True)).plan if has_adapter else compiled.step.plan
    min_s = (min_seconds(plan, compiled.operators, phase, measured) for phase in split_phases(shapes or runs[0].shapes))
    return runs, Phases(*min_s), measured


def _run(
    llm: LLM, prompt_tokens: int, output_tokens: int, batch: int, adapter: str, *, is_observed: bool = True
) -> BatchTiming:
    import time

    from aethermind.engine.observation.profiler import sample_prompt
    from aethermind.engine.observation.roofline import StepRecorder
    from aethermind.sampling.params import SamplingParams

    vocab_size = llm.engine.compiled.model.config.vocab_size
    prompts = [{"prompt_token_ids": sample_prompt(prompt_tokens, vocab_size, index)} for index in range(batch)]
    run = BatchTiming(batch, prompt_tokens)
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    recorder = StepRecorder()
    llm.engine.runner.observer = recorder if is_observed else None
    llm.generate(prompts, params, adapter=adapter, on_output=lambda output: run.record(output, time.perf_counter()))
    run.shapes = recorder.shapes
    return run


def split_phases(shapes: list[StepShape]) -> tuple[list[StepShape], list[StepShape]]:
    """Split steps into those up to the last with prefill, and the decode-only steps after it."""
    num_prefill = max((i + 1 for i, shape in enumerate(shapes) if not shape.is_decode), default=0)
    return shapes[:num_prefill], shapes[num_prefill:]


def summarize(runs: list[BatchTiming], min_s: Phases) -> dict[str, float | None]:
    """Return medians over the runs, and the fraction of the roofline that they reach (None if the limit is unknown)."""
    rates = [rate for run in runs if (rate := run.decode_tokens_per_s) is not None]
    return {
        "prefill_tokens_per_s": median(run.prefill_tokens_per_s for run in runs),
        "decode_tokens_per_s": median(rates) if rates else None,
        "ttft_s": median(run.ttft_s for run in runs),
        "prefill_limit_fraction": _fraction(min_s.prefill, median(run.prefill_s for run in runs)),
        "decode_limit_fraction": _fraction(min_s.decode, median(run.decode_s for run in runs)),
    }


def _fraction(min_s: float | None, seconds: float) -> float | None:
    return min_s / seconds if min_s and seconds > 0 else None


def _peak_memory_bytes() -> int | None:
    """Peak resident memory of this process in bytes; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _print_report(report: dict[str, Any], measured: MeasuredLimits | None) -> None:
    print(
        f"{report['model']} on {report['device']} ({report['dtype']}, {report['num_threads']} threads): "
        f"{report['batch']} × ({report['prompt_tokens']} + {report['output_tokens']} tokens), "
        f"median of {report['repeat']}"
    )
    rows: list[tuple[str, ...]] = []
    for name in ("prefill", "decode"):
        rate, fraction = report[f"{name}_tokens_per_s"], report[f"{name}_limit_fraction"]
        speed = "-" if rate is None else f"{rate:.1f} tokens/s"
        rows.append((name, speed, "" if fraction is None else f"{fraction:.0%} of the limit"))
    peak = report["peak_memory_bytes"]
    rows += [
        ("first token", f"{report['ttft_s'] * 1e3:.1f} ms"),
        ("loading", f"{report['load_s'] * 1e3:.0f} ms"),
        (
            "weights",
            console.quantity(report["weight_bytes"], "B"),
            console.describe_weight_formats(report["weight_formats"]),
        ),
        ("peak memory", "unknown" if peak is None else console.quantity(peak, "B")),
    ]
    print(console.columns(rows))
    if any((report[f"{name}_limit_fraction"] or 0.0) > 1.05 for name in ("prefill", "decode")):
        print(
            "More than the limit: the weights fit the processor's caches, the machine was busy while its limits were "
            "measured, or the requests of a batch chose the same experts. Measure a larger model on an idle machine."
        )
    print(f"Limits measured\n{console.columns(limits.describe_limits(measured))}")
