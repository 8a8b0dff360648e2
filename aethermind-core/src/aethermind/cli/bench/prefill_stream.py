"""`aethermind bench prefill-stream`: compares steps that prefill and decode on one stream with steps on two."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.settings import DeviceOptions

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["EXAMPLES", "MixedLoad", "compare_streams", "prefill_stream"]

EXAMPLES = console.examples(
    "aethermind bench prefill-stream --device sim --dtype float32 --requests 4 --batch 2 --prompt-tokens 24 "
    "--output-tokens 4 --repeat 1",
)


@with_settings
def prefill_stream(
    model: options.Model = None,
    *,
    load_format: options.LoadFormat,
    requests: Annotated[int, typer.Option(help="Number of requests.", min=2)] = 64,
    batch: options.Batch = 16,
    prompt_tokens: options.PromptTokens = 512,
    output_tokens: options.OutputTokens = 128,
    repeat: options.Repeat = 5,
    device_options: DeviceOptions,
    kv_cache_dtype: options.KvCacheDType,
    max_num_batched_tokens: options.MaxNumBatchedTokens,
    deterministic: options.Deterministic,
    as_json: options.AsJson = False,
) -> None:
    """Measure steps that decode and prefill on one stream and on two, alternately.

    As many requests as --batch are open at a time. Their outputs have different lengths, so prompts arrive
    while other requests decode. The same requests run with one stream and with two, in alternating order,
    and the report has the medians. --prefill-stream is worthwhile if tokens per second rise and the time
    between tokens does not.
    """
    from aethermind.cli.progress import open_llm

    longest = prompt_tokens + 2 * output_tokens
    with open_llm(
        options.chosen_model(model),
        device_options,
        load_format=load_format,
        kv_cache_dtype=kv_cache_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        deterministic=deterministic,
        max_model_len=longest,
        max_num_seqs=batch,
        enable_prefix_caching=False,
        prefill_stream=True,
    ) as llm:
        load = MixedLoad(requests, batch, prompt_tokens, output_tokens, llm.engine.compiled.model.config.vocab_size)
        report = {
            "model": llm.info.model,
            "device": llm.info.device,
            "dtype": llm.info.dtype,
            "requests": requests,
            "batch": batch,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "repeat": repeat,
            **compare_streams(llm.engine, load, repeat),
        }
    if as_json:
        console.print_json(report)
    else:
        _print_report(report)


@dataclass(slots=True)
class _Run:
    """One run of a load: total seconds, TTFT of each request, inter-token latencies, and the generated tokens."""

    seconds: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    inter_token_s: list[float] = field(default_factory=list)
    token_ids: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """Requests, `batch` of which are open at a time, whose outputs have from 1/2 to 3/2 of `output_tokens` tokens."""

    num_requests: int
    batch: int
    prompt_tokens: int
    output_tokens: int
    vocab_size: int

    def run(self, engine: Engine, *, overlaps: bool) -> _Run:
        """Run all requests; with `overlaps`, prefill runs on a second stream."""
        from aethermind.engine.observation.profiler import sample_prompt
        from aethermind.sampling.params import SamplingParams

        engine.runner.overlaps_prefill = overlaps
        run, arrival_s, last_token_s, next_index = _Run(), dict[str, float](), dict[str, float](), 0
        started = time.perf_counter()
        while next_index < self.num_requests or engine.has_unfinished:
            while next_index < self.num_requests and len(arrival_s) - len(run.token_ids) < self.batch:
                half = max(1, self.output_tokens // 2)
                # A prime multiple spreads the lengths; they are the same in every run.
                length = half + next_index * 7919 % (self.output_tokens + 1)
                params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
                arrival_s[str(next_index)] = time.perf_counter()
                prompt = sample_prompt(self.prompt_tokens, self.vocab_size, next_index)
                engine.add_request(str(next_index), prompt, params)
                next_index += 1
            for output in engine.step():
                request_id, now = output.request_id, time.perf_counter()
                if request_id in last_token_s:
                    run.inter_token_s.append(now - last_token_s[request_id])
                else:
                    run.ttft_s.append(now - arrival_s[request_id])
                last_token_s[request_id] = now
                if output.finished:
                    run.token_ids[request_id] = output.outputs[0].token_ids
        run.seconds = time.perf_counter() - started
        return run


def compare_streams(
    engine: Engine, load: MixedLoad, repeat: int, on_run: Callable[[int, bool, float], None] | None = None
) -> dict[str, Any]:
    """Run a load with one stream and with two, alternately: medians, and whether all runs gave the same tokens.

    The engine has the option `prefill_stream`. After each run `on_run` gets the number of its round, whether it had two
    streams, and its seconds.
    """
    runs: dict[bool, list[_Run]] = defaultdict(list)
    for round_index in range(repeat + 1):  # the first round is the warm-up
        for overlaps in (True, False) if round_index % 2 else (False, True):
            run = load.run(engine, overlaps=overlaps)
            if on_run is not None:
                on_run(round_index, overlaps, run.seconds)
            if round_index:
                runs[overlaps].append(run)
    return {
        "one_stream": _summary(runs[False]),
        "two_streams": _summary(runs[True]),
        "same_tokens": all(run.token_ids == runs[False][0].token_ids for run in runs[False] + runs[True]),
    }


def _summary(runs: list[_Run]) -> dict[str, float]:
    """Return medians over the runs, and for inter-token latencies also the 99th percentile."""
    num_tokens = sum(map(len, runs[0].token_ids.values()))
    inter_token_s = [sorted(run.inter_token_s) or [0.0] for run in runs]
    return {
        "tokens_per_s": num_tokens / median(run.seconds for run in runs),
        "ttft_s": median(median(run.ttft_s) for run in runs),
        "inter_token_s": median(map(median, inter_token_s)),
        "inter_token_p99_s": median(times[int(0.99 * (len(times) - 1))] for times in inter_token_s),
    }


def _print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['model']} on {report['device']} ({report['dtype']}): {report['requests']} requests, "
        f"{report['batch']} at once, {report['prompt_tokens']} + about {report['output_tokens']} tokens, "
        f"median of {report['repeat']}"
    )
    rows: list[tuple[str, ...]] = [("", "tokens/s", "ttft ms", "between tokens ms", "p99 ms")]
    for name, key in (("one stream", "one_stream"), ("two streams", "two_streams")):
        found = report[key]
        times = (f"{found[key] * 1e3:.2f}" for key in ("ttft_s", "inter_token_s", "inter_token_p99_s"))
        rows.append((name, f"{found['tokens_per_s']:.1f}", *times))
    print(console.columns(rows))
    if not report["same_tokens"]:
        print("\nTokens differ: with --deterministic they are the same in any batch.")
