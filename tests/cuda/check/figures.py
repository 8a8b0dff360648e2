"""Prefill and decode of a model's shapes in bfloat16, end to end: one load, one line of figures after each batch.

python -m tests.cuda.check.figures [--small] [mixture] [FORMAT]

The model is Qwen2-7B, or with `mixture` a part of Qwen3-30B-A3B; FORMAT is one of its weights, such as int4 or fp8, and
means fewer figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.cuda.check import qwen2_7b, qwen3_30b_a3b
from tests.cuda.check.qwen2_7b import write_model
from tests.cuda.check.records import CaseLog

from aethermind import LLM, SamplingParams
from aethermind.cli.bench.latency import BatchTiming, Phases, split_phases, summarize
from aethermind.engine.observation.profiler import sample_prompt
from aethermind.engine.observation.roofline import StepRecorder, StepShape, min_seconds
from aethermind.hal import DType

if TYPE_CHECKING:
    from aethermind.hal.backend import MeasuredLimits
    from aethermind.hal.stream import Stream

__all__: list[str] = []

_MAX_CONTEXT = 16_448
_RUNS = 3


@dataclass(frozen=True)
class Model:
    """What is run of a model, the most telling first.

    Attributes:
        batches: requests, tokens of a prompt, tokens of an answer.
        prompts: tokens of single prompts.
        new_lengths: tokens of prompts whose launches are not bound before.
        traced: batches of decodes whose kernels are listed.
        traced_prompts: tokens of single prompts whose kernels are listed.
        temperature: of the samplers; sequences that sample choose experts independently of each other.
    """

    config: Mapping[str, Any]
    batches: tuple[tuple[int, int, int], ...]
    prompts: tuple[int, ...] = ()
    new_lengths: tuple[int, ...] = ()
    traced: tuple[int, ...] = ()
    traced_prompts: tuple[int, ...] = ()
    temperature: float = 0.0


_MIXTURE = Model(
    qwen3_30b_a3b.CONFIG,
    batches=((1, 512, 64), (8, 512, 64), (64, 512, 64)),
    prompts=(512, 2048),
    traced=(1, 64),
    traced_prompts=(2048,),
    temperature=1.0,
)
MODELS: Mapping[str, Mapping[str, Model]] = {
    "": {
        "bfloat16": Model(
            qwen2_7b.CONFIG,
            batches=((1, 512, 64), (64, 512, 64), (8, 512, 64), (256, 128, 64)),
            prompts=(512, 2048, 16384),
            new_lengths=(2047, 1993, 481),
            traced=(1, 64, 256),
            traced_prompts=(2048,),
        ),
        "quantized": Model(
            qwen2_7b.CONFIG,
            batches=((1, 512, 64), (64, 512, 64), (8, 512, 64)),
            prompts=(512,),
            traced=(1, 64),
        ),
    },
    "mixture": {"bfloat16": _MIXTURE, "quantized": replace(_MIXTURE, traced=(1,), traced_prompts=())},
}
"""By name, in bfloat16 and with quantised weights."""
_SMALL = {
    "batches": ((1, 32, 8), (4, 16, 8)),
    "prompts": (64,),
    "new_lengths": (63, 50),
    "traced": (),
    "traced_prompts": (),
}
_SMALL_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "": qwen2_7b.SMALL_CONFIG,
    "mixture": qwen3_30b_a3b.SMALL_CONFIG,
}


def generate(llm: LLM, batch: int, prompt_tokens: int, output_tokens: int, temperature: float = 0.0) -> BatchTiming:
    """Answer a batch of prompts of one length."""
    prompts = [
        {"prompt_token_ids": sample_prompt(prompt_tokens, llm.engine.compiled.model.config.vocab_size, index)}
        for index in range(batch)
    ]
    run = BatchTiming(batch, prompt_tokens)
    params = SamplingParams(temperature=temperature, max_tokens=output_tokens, ignore_eos=True)
    llm.generate(prompts, params, on_output=lambda output: run.record(output, time.perf_counter()))
    return run


def shapes_of(llm: LLM, generate: Callable[[], object]) -> list[StepShape]:
    """The steps that a run takes, in one that is not timed."""
    recorder = StepRecorder()
    llm.engine.runner.observer = recorder
    try:
        generate()
    finally:
        llm.engine.runner.observer = None
    return recorder.shapes


def measure(
    llm: LLM, limits: MeasuredLimits, batch: tuple[int, int, int], facts: Any, temperature: float = 0.0
) -> None:
    """Rates of a batch, and the fraction of what the measured limits allow."""
    requests, prompt_tokens, output_tokens = batch
    generate(llm, requests, prompt_tokens, min(8, output_tokens), temperature)
    shapes = shapes_of(llm, lambda: generate(llm, *batch, temperature))
    runs = [generate(llm, *batch, temperature) for _ in range(_RUNS)]
    compiled = llm.engine.compiled
    least = Phases(
        *(min_seconds(compiled.step.plan, compiled.operators, part, limits) for part in split_phases(shapes))
    )
    facts |= {name: value for name, value in summarize(runs, least).items() if value is not None}
    facts["prefill_ms"] = 1e3 * median(run.prefill_s for run in runs)
    if output_tokens > 1:
        facts["step_ms"] = 1e3 * median(run.decode_s for run in runs) / (output_tokens - 1)


def host_times(llm: LLM, prompt_tokens: int) -> dict[str, float]:
    """Milliseconds of a known prompt before its first step is enqueued, while it is, until the device is done, and
    after; `gpu_ms` is what the device took between the first and the last of its work.
    """
    compiled, executable = llm.engine.compiled, llm.engine.runner.executor.executable
    events = compiled.open_device.backend.events
    begin, end = (events.create(timing=True) for _ in range(2))
    run, wait, marks = executable.run, llm.engine.pipeline.step, list[float]()

    def timed_run(symbols: tuple[int, ...], stream: Stream) -> None:
        marks.append(time.perf_counter())
        begin.record(stream)
        run(symbols, stream)
        end.record(stream)
        marks.append(time.perf_counter())

    def timed_step(*arguments: Any, **keywords: Any) -> Any:
        finished = wait(*arguments, **keywords)
        marks.append(time.perf_counter())
        return finished

    prompts = [{"prompt_token_ids": sample_prompt(prompt_tokens, compiled.model.config.vocab_size, 0)}]
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    executable.run, llm.engine.pipeline.step = timed_run, timed_step  # type: ignore[method-assign]
    try:
        times = []
        for _ in range(_RUNS):
            marks.clear()
            began = time.perf_counter()
            llm.generate(prompts, params)
            marks.append(time.perf_counter())
            spans = [later - earlier for earlier, later in pairwise([began, *marks])]
            times.append([*(1e3 * span for span in spans), begin.elapsed_ms(end)])
    finally:
        del executable.run, llm.engine.pipeline.step
    names = "before_ms", "enqueue_ms", "wait_ms", "after_ms", "gpu_ms"
    return {name: round(median(values), 3) for name, values in zip(names, zip(*times, strict=True), strict=True)}


def open_model(folder: Path, config: dict[str, Any], num_kv_blocks: int, quantization: str | None) -> LLM:
    """The model with dummy weights, sized for the largest batch."""
    model = write_model(folder, config)
    return LLM(
        model,
        device="cuda",
        quantization=quantization,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=min(_MAX_CONTEXT, config["max_position_embeddings"]),
        max_num_batched_tokens=4096,
        max_num_seqs=256,
        num_kv_blocks=num_kv_blocks,
        enable_prefix_caching=False,
    )


def main() -> int:
    """Load once and measure everything; `--small` rehearses with two narrow layers."""
    is_small = "--small" in sys.argv
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    name = "mixture" if "mixture" in words else ""
    format = next((word for word in words if word != name), None)
    model = MODELS[name]["bfloat16" if format is None else "quantized"]
    if is_small:
        model = replace(model, config=_SMALL_CONFIGS[name], **_SMALL)
    log = CaseLog.of_environment(" ".join(["figures", *words]))
    begun = log.begun()
    with TemporaryDirectory() as folder:
        with log.case("load") as facts:
            began = time.perf_counter()
            llm = open_model(Path(folder) / "model", model.config, 64 if is_small else 3328, format)
            facts["seconds"] = round(time.perf_counter() - began, 1)
        with log.case("limits") as facts:
            limits = llm.engine.compiled.open_device.backend.measure_limits(
                [DType.BFLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN]
            )
            facts["copy GB/s"] = round(limits.memory_bytes_per_s / 1e9)
            facts |= {f"{name} TFLOP/s": round(rate / 1e12) for name, rate in limits.flops_per_s.items()}
        for batch in model.batches:
            if (name := f"{batch[0]} x ({batch[1]} + {batch[2]})") not in begun:
                with log.case(name) as facts:
                    measure(llm, limits, batch, facts, model.temperature)
        for length in model.new_lengths:
            if (name := f"a new length of {length}") not in begun:
                with log.case(name) as facts:
                    first, *others = (generate(llm, 1, length, 1).prefill_s for _ in range(4))
                    facts |= {"first_ms": 1e3 * first, "known_ms": 1e3 * median(others)}
        for length in model.prompts:
            if (name := f"a prompt of {length}") not in begun:
                with log.case(name) as facts:
                    measure(llm, limits, (1, length, 1), facts)
                    if length <= llm.engine.budget.max_num_batched_tokens:
                        facts |= host_times(llm, length)
        traced = [(f"decodes of {batch}", (batch, 128, 48), 0.4) for batch in model.traced]
        traced += [(f"a prompt of {length}", (1, length, 1), 0.0) for length in model.traced_prompts]
        for what, batch, skipped in traced:
            from tests.cuda.check.trace import trace

            with log.case(f"trace of {what}") as facts:
                facts |= trace(lambda: generate(llm, *batch, model.temperature), skipped)  # noqa: B023 - called at once
        llm.close()
    return 1 if log.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
