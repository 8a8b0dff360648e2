"""`aethermind bench latency`: prefill and decode of one batch, against what the hardware allows."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.bench.limits import Limits, describe_limits, measure_limits
from aethermind.cli.weight_formats import as_record, describe

if TYPE_CHECKING:
    from aethermind.cli.bench.workload import Workload
    from aethermind.engine.output import RequestOutput
    from aethermind.llm import LLM

__all__ = ["EXAMPLES", "Run", "latency"]

EXAMPLES = console.examples(
    "aethermind bench latency",
    "aethermind bench latency --prompt-tokens 64 --output-tokens 32 --repeat 1 --json",
    "aethermind bench latency --model demo --load-format dummy --batch 4 --threads 2",
)

WARM_UP_TOKENS = 4


def latency(
    model: options.Model = None,
    load_format: options.LoadFormat = "auto",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens in each prompt.", min=1)] = 512,
    output_tokens: Annotated[int, typer.Option(help="Tokens in each answer.", min=1)] = 128,
    batch: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 1,
    repeat: Annotated[int, typer.Option(help="Runs; medians are reported.", min=1)] = 3,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
    quantization: options.Quantization = None,
    lm_head: options.LmHead = None,
    kv_cache_dtype: options.KvCacheDType = "auto",
    threads: options.NumThreads = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    fallback: options.Fallback = "warn",
    as_json: options.AsJson = False,
) -> None:
    """Measure prefill, decode and time to first token of one batch.

    Limits are measured just before and after the runs. Decode is compared with the time
    that reading weights, keys and values takes, prefill with the time of its arithmetic.
    """
    from aethermind.cli.bench.workload import Workload
    from aethermind.cli.load import open_llm
    from aethermind.engine.weight_formats import format_uses

    llm = open_llm(
        options.chosen_model(model),
        device=device,
        dtype=dtype,
        quantization=quantization,
        lm_head=lm_head,
        load_format=load_format,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=threads,
        max_num_batched_tokens=max_num_batched_tokens,
        fallback=fallback,
        max_model_len=prompt_tokens + output_tokens,
        num_kv_blocks=batch * -(-(prompt_tokens + output_tokens) // 16),
        max_num_seqs=batch,
        enable_prefix_caching=False,
    )
    with closing(llm):
        planned = llm.engine.planned
        backend = planned.open_device.backend
        _run(llm, prompt_tokens, min(output_tokens, WARM_UP_TOKENS), batch)
        peak_memory_bytes = _peak_memory_bytes()  # before the limits are measured: that takes memory of its own
        before = measure_limits(backend, threads)
        runs = [_run(llm, prompt_tokens, output_tokens, batch) for _ in range(repeat)]
        limits = Limits.average([before, measure_limits(backend, threads)])
        workload = Workload(planned.compiled.plan, planned.operators)
        formats = [as_record(use) for use in format_uses(planned)]
        report = {
            "model": llm.info.model,
            "device": llm.info.device,
            "dtype": llm.info.dtype,
            "weight_formats": formats,
            "num_threads": llm.info.num_threads,
            "load_format": load_format,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "batch": batch,
            "repeat": repeat,
            # Quantised weights may be multiplied as bytes, so nothing less than that is their limit.
            **summarize(runs, workload, limits, "int8" if formats else llm.info.dtype),
            "load_s": llm.info.load_s,
            "peak_memory_bytes": peak_memory_bytes,
            "weight_bytes": llm.info.weight_bytes,
            "weight_bytes_per_step": workload.weight_bytes,
            "limits": limits.as_record(),
        }
    if as_json:
        console.print_json(report)
    else:
        _print_report(report, limits)


@dataclass(slots=True)
class Run:
    """When the tokens of one batch came, in seconds of `time.perf_counter`. Mutable while it is recorded."""

    num_requests: int
    prompt_tokens: int
    started_s: float = float("inf")
    counts: dict[str, int] = field(default_factory=dict)
    first_tokens_s: dict[str, float] = field(default_factory=dict)
    num_tokens_at_prefill_end: int = 0
    finished_s: float = 0.0

    def record(self, output: RequestOutput, now: float) -> None:
        """Take one output of the engine."""
        self.started_s = min(self.started_s, output.metrics.arrival_s)
        self.counts[output.request_id] = len(output.outputs[0].token_ids)
        if output.request_id not in self.first_tokens_s and output.metrics.first_token_s is not None:
            self.first_tokens_s[output.request_id] = output.metrics.first_token_s
            self.num_tokens_at_prefill_end = sum(self.counts.values())
        self.finished_s = now

    @property
    def ttft_s(self) -> float:
        """The median request's time to first token."""
        return median(self.first_tokens_s.values()) - self.started_s

    @property
    def prefill_s(self) -> float:
        """From the batch's arrival to the first token of its last request."""
        return max(self.first_tokens_s.values()) - self.started_s

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.num_requests * self.prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second of the batch once every request decodes; None where no token is left to decode."""
        num_tokens = sum(self.counts.values()) - self.num_tokens_at_prefill_end
        seconds = self.finished_s - max(self.first_tokens_s.values())
        return num_tokens / seconds if num_tokens > 0 and seconds > 0 else None

    @property
    def mean_context(self) -> int:
        """Tokens that a request holds halfway through its answer."""
        return self.prompt_tokens + max(self.counts.values()) // 2


def _run(llm: LLM, prompt_tokens: int, output_tokens: int, batch: int) -> Run:
    import time

    from aethermind.sampling.params import SamplingParams

    vocab_size = llm.engine.planned.model.config.vocab_size
    prompts = [
        {"prompt_token_ids": [(7919 * (start + i) + 13) % vocab_size for i in range(prompt_tokens)]}
        for start in range(batch)
    ]
    run = Run(batch, prompt_tokens)
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    llm.generate(prompts, params, on_output=lambda output: run.record(output, time.perf_counter()))
    return run


def summarize(runs: list[Run], workload: Workload, limits: Limits, dtype: str) -> dict[str, float | None]:
    """Medians over the runs, and which fraction of the limit they reach (None where the limit is not known)."""
    prefill = median(run.prefill_tokens_per_s for run in runs)
    rates = [rate for run in runs if (rate := run.decode_tokens_per_s) is not None]
    decode = median(rates) if rates else None
    run = runs[0]
    prefill_fraction = decode_fraction = None
    peak = limits.peak(dtype)
    if peak:
        least_s = run.num_requests * workload.prefill_flops(run.prompt_tokens) / peak
        prefill_fraction = least_s / median(run.prefill_s for run in runs)
    if limits.memory_bytes_per_s and decode is not None:
        step_bytes = workload.weight_bytes + run.num_requests * workload.kv_bytes(run.mean_context)
        decode_fraction = step_bytes / limits.memory_bytes_per_s * decode / run.num_requests
    return {
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": decode,
        "ttft_s": median(run.ttft_s for run in runs),
        "prefill_limit_fraction": prefill_fraction,
        "decode_limit_fraction": decode_fraction,
    }


def _peak_memory_bytes() -> int | None:
    """The most memory this process ever had resident; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _print_report(report: dict[str, Any], limits: Limits) -> None:
    print(
        f"{report['model']} on {report['device']} ({report['dtype']}, {report['num_threads']} threads): "
        f"{report['batch']} × ({report['prompt_tokens']} + {report['output_tokens']} tokens), "
        f"median of {report['repeat']}"
    )
    rows: list[tuple[str, ...]] = []
    for name, limit in (("prefill", "arithmetic"), ("decode", "memory")):
        rate, fraction = report[f"{name}_tokens_per_s"], report[f"{name}_limit_fraction"]
        speed = "-" if rate is None else f"{rate:.1f} tokens/s"
        rows.append((name, speed, "" if fraction is None else f"{fraction:.0%} of the {limit} limit"))
    peak = report["peak_memory_bytes"]
    rows += [
        ("first token", f"{report['ttft_s'] * 1e3:.1f} ms"),
        ("loading", f"{report['load_s'] * 1e3:.0f} ms"),
        ("weights", console.quantity(report["weight_bytes"], "B"), describe(report["weight_formats"])),
        ("peak memory", "unknown" if peak is None else console.quantity(peak, "B")),
    ]
    print(console.columns(rows))
    print(f"Limits measured\n{console.columns(describe_limits(limits))}")
