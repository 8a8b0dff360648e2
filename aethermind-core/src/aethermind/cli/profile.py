"""`aethermind profile`: time by operator and by layer, and memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.output_files import check_writable, writing
from aethermind.cli.settings import DeviceOptions, as_arguments

if TYPE_CHECKING:
    from aethermind.engine.observation.profiler import MemoryUse, StepProfile, Total
    from aethermind.engine.parts import EngineParts
    from aethermind.hal.backend import MeasuredLimits

__all__ = ["EXAMPLES", "profile", "summarize"]

EXAMPLES = console.examples(
    "aethermind profile",
    "aethermind profile --prompt-tokens 64 --output-tokens 4 --trace trace.json",
    "aethermind profile --batch 8 --prompt-tokens 32 --output-tokens 4",
    "aethermind profile --device numpy --dtype float32 --output-tokens 2 --json",
)


@with_settings
def profile(
    model: options.Model = None,
    *,
    load_format: options.LoadFormat,
    adapters: options.Adapters,
    prompt_tokens: options.PromptTokens = 128,
    output_tokens: options.OutputTokens = 16,
    batch: options.Batch = 1,
    repeat: options.Repeat = 3,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace, which https://ui.perfetto.dev opens.", dir_okay=False)
    ] = None,
    device_options: DeviceOptions,
    kv_cache_dtype: options.KvCacheDType,
    num_threads: options.NumThreads,
    as_json: options.AsJson = False,
) -> None:
    """Show where time and memory go.

    Times every kernel call of one batch of prompts and their answers, and shows the bytes and operations
    that each call needs at least. Its limit is that of the roofline: the time to read its weights, keys
    and values at the measured memory bandwidth, or of its operations at the measured peak of the arithmetic
    used, whichever is longer. Timing itself costs time, most for small calls; the report says how much. The
    trace leaves out the host's time between calls. An --adapter applies to all requests.
    """
    from aethermind.cli.bench.limits import as_record, average, measure_limits, num_kv_blocks_of
    from aethermind.engine.parts import EngineParts
    from aethermind.runtime import Runtime

    adapter = options.chosen_adapter(adapters)
    if trace is not None:
        check_writable(trace, "Trace file")
    parts = EngineParts.of(
        Runtime.boot(),
        options.chosen_model(model),
        **as_arguments(device_options),
        load_format=load_format,
        adapters=adapters,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=num_threads,
        max_model_len=prompt_tokens + output_tokens + 1,
        num_kv_blocks=num_kv_blocks_of(device_options.device, batch, prompt_tokens + output_tokens + 1),
        max_num_seqs=batch,
        max_num_batched_tokens=batch * prompt_tokens,
        enable_prefix_caching=False,
    )
    compiled = parts.compiled
    backend = compiled.open_device.backend
    with closing(backend):
        before = measure_limits(backend, num_threads)
        steps, memory = _run(parts, prompt_tokens, output_tokens, batch, repeat, adapter)
        limits = average(before, measure_limits(backend, num_threads))
    if trace is not None:
        _write_trace(trace, steps, memory, str(compiled.open_device.device))
    phases = {name: summarize([step for step in steps if step.phase == name], limits) for name in ("prefill", "decode")}
    measurements = [
        {"moment": use.moment, **use.categories(), "resident_bytes": use.resident_bytes} for _, use in memory
    ]
    report = {
        "model": str(compiled.source.path),
        "device": str(compiled.open_device.device),
        "dtype": str(compiled.dtype),
        "num_threads": compiled.open_device.num_threads,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "batch": batch,
        "repeat": repeat,
        "phases": phases,
        "memory": measurements,
        "limits": as_record(limits),
        "trace": None if trace is None else str(trace),
    }
    if as_json:
        console.print_json(report)
    else:
        _print_report(report, limits)


def _run(
    parts: EngineParts, prompt_tokens: int, output_tokens: int, batch: int, repeat: int, adapter: str
) -> tuple[list[StepProfile], list[tuple[int, MemoryUse]]]:
    """Profile one batch; returns its steps, and memory measurements with the number of steps before each."""
    from aethermind.cli.progress import LoadProgress
    from aethermind.engine.engine import Engine
    from aethermind.engine.observation.profiler import Profiler, measure_memory, sample_prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams

    compiled = parts.compiled
    memory = [(0, measure_memory("planned", compiled))]
    with LoadProgress() as progress:
        engine = Engine.load(parts, progress)
    memory.append((0, measure_memory("loaded", compiled, engine.runner)))
    vocab_size = compiled.model.config.vocab_size

    def add_requests(kind: str, max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        for index in range(batch):
            prompt = sample_prompt(prompt_tokens, vocab_size, index)
            engine.add_request(f"{kind} {index}", prompt, params, options=RequestOptions(adapter=adapter))

    add_requests("warm-up", 2)
    while engine.has_unfinished:
        engine.advance()
    profiler = Profiler(compiled.operators, engine.runner.kv_memory, repeat)
    engine.runner.observer = profiler
    add_requests("profile", output_tokens + 1)
    engine.advance()
    memory.append((1, measure_memory("after prefill", compiled, engine.runner)))
    while engine.has_unfinished:
        engine.advance()
    memory.append((len(profiler.steps), measure_memory("after decode", compiled, engine.runner)))
    return profiler.steps, memory


def summarize(steps: Sequence[StepProfile], limits: MeasuredLimits | None) -> dict[str, Any]:
    """Return the tables of one phase, for JSON: totals by operator and by layer, and the overhead of timing."""
    from aethermind.engine.observation.profiler import total

    seconds = sum(step.seconds for step in steps)
    # Steps with and without the time stamps ("marks") around each kernel call.
    marked, unmarked = sum(step.marked_s for step in steps), sum(step.unmarked_s for step in steps)
    operators = total(steps, key=lambda call: call.operator)
    layers = total(steps, key=lambda call: call.layer)
    slowest_first = sorted(operators.items(), key=lambda item: -item[1].seconds)
    return {
        "num_steps": len(steps),
        "seconds": seconds,
        "marked_seconds": marked,
        "unmarked_seconds": unmarked,
        "overhead_fraction": marked / unmarked - 1 if unmarked > 0 else None,
        "overhead_s_per_call": (marked - unmarked) / sum(len(total.calls) for total in operators.values()),
        "operators": [{"operator": name, **_record(total, seconds, limits)} for name, total in slowest_first],
        "layers": [{"layer": layer, **_record(total, seconds, limits)} for layer, total in layers.items()],
    }


def _record(total: Total, seconds: float, limits: MeasuredLimits | None) -> dict[str, Any]:
    cost = total.cost
    minimum = (
        (None,) * 3 if limits is None else (total.memory_s(limits), total.arithmetic_s(limits), total.min_s(limits))
    )
    memory_s, arithmetic_s, min_s = minimum
    moved = cost.bytes_read + cost.bytes_written
    return {
        "num_calls": len(total.calls),
        "seconds": total.seconds,
        "share": _ratio(total.seconds, seconds),
        "bytes_read": cost.bytes_read,
        "bytes_written": cost.bytes_written,
        "flops": cost.flops,
        "bytes_per_s": _ratio(moved, total.seconds),
        "flops_per_s": _ratio(cost.flops, total.seconds),
        "memory_limit_fraction": _ratio(memory_s, total.seconds),
        "arithmetic_limit_fraction": _ratio(arithmetic_s, total.seconds),
        "limit_fraction": _ratio(min_s, total.seconds),
    }


def _ratio(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _write_trace(path: Path, steps: list[StepProfile], memory: list[tuple[int, MemoryUse]], device: str) -> None:
    import json

    from aethermind.engine.observation.profiler import chrome_trace

    with writing(path, "Trace file"):
        path.write_text(json.dumps(chrome_trace(steps, memory, device)))


def _print_report(report: dict[str, Any], limits: MeasuredLimits | None) -> None:
    from aethermind.cli.bench.limits import describe_limits

    print(
        f"{report['model']} on {report['device']} ({report['dtype']}, {report['num_threads']} threads): "
        f"{report['batch']} × ({report['prompt_tokens']} + {report['output_tokens']} tokens), "
        f"median of {report['repeat']}"
    )
    for name, phase in report["phases"].items():
        overhead = phase["overhead_fraction"]
        per_call_us = phase["overhead_s_per_call"] * 1e6
        cost = "" if overhead is None else f", {overhead:+.1%} with timing of calls ({per_call_us:+.1f} µs a call)"
        title = f"{name}: {phase['num_steps']} × {phase['unmarked_seconds'] / phase['num_steps'] * 1e3:.2f} ms{cost}"
        print(f"\n{console.style(title, 'bold', sys.stdout)}")
        print(console.columns(_rows("operator", phase["operators"])))
        print(console.columns(_rows("layer", phase["layers"])))
    print(f"\n{console.style('memory', 'bold', sys.stdout)}")
    print(console.columns(_memory_rows(report["memory"])))
    print(f"\nLimits measured\n{console.columns(describe_limits(limits))}")
    for remark in remarks(report):
        print(f"\n{remark}")
    if report["trace"]:
        print(f"\nTrace written to {report['trace']}; open it in ui.perfetto.dev")


def remarks(report: dict[str, Any]) -> list[str]:
    """Return warnings about unreliable figures."""
    found = []
    records = [record for phase in report["phases"].values() for record in phase["operators"]]
    if any((record["limit_fraction"] or 0.0) > 1.05 for record in records):
        found.append(
            "Fractions above 100 %: what these operators read lies in the processor's caches, as with small models, "
            "or the machine was busy while its limits were measured. Measure a larger model on a machine that is idle."
        )
    if any(abs(phase["overhead_fraction"] or 0.0) > 0.25 for phase in report["phases"].values()):
        found.append(
            "The time with timing of calls and without differs by more than a quarter: the steps are too short, or the "
            "machine is busy. Shares of operators are reliable only where the two are close."
        )
    return found


def _rows(key: str, records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    header = (key, "calls", "ms", "share", "read", "written", "flop", "moved", "computed", "of limit")
    return [header, *(_row(record, record[key]) for record in records)]


def _row(record: dict[str, Any], label: str | int | None) -> tuple[str, ...]:
    return (
        "outside" if label is None else str(label),
        str(record["num_calls"]),
        f"{record['seconds'] * 1e3:.3f}",
        _percent(record["share"]),
        console.quantity(record["bytes_read"], "B"),
        console.quantity(record["bytes_written"], "B"),
        console.quantity(record["flops"], ""),
        _rate(record["bytes_per_s"], "B/s"),
        _rate(record["flops_per_s"], "FLOP/s"),
        _percent(record["limit_fraction"]),
    )


def _rate(value: float | None, unit: str) -> str:
    return "-" if value is None else console.quantity(value, unit)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def _memory_rows(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows = [tuple(name.replace("_bytes", "").replace("_", " ") for name in records[0])]
    for record in records:
        cells = (value if isinstance(value, str) else _rate(value, "B") for value in record.values())
        rows.append(tuple(cells))
    return rows
