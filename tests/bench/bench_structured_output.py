"""What structured output adds to a decode step, and what it does to tokens per second.

make bench
MODEL=DIR BATCH=16 python -m pytest tests/bench/bench_structured_output.py -s -q -o python_files='bench_*.py' \
    -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random, so answers are what the grammar leaves of noise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from statistics import mean, median
from typing import Any

import pytest
from tests.end_to_end.schemas import SCHEMAS

from aethermind import LLM, SamplingParams, StructuredOutputs
from aethermind.engine.engine import Engine

MODEL = os.environ.get("MODEL", "demo")
BATCH = int(os.environ.get("BATCH", "16"))
NUM_STEPS = int(os.environ.get("STEPS", "100"))
NUM_ROUNDS = int(os.environ.get("ROUNDS", "5"))

DEMANDS: dict[str, list[dict[str, Any]]] = {
    "fifty schemas": [{"json": schema} for schema in SCHEMAS],
    "free strings": [{"json": {"type": "array", "items": {"type": "string"}, "minItems": 40}}],
    "keywords": [{"regex": "((red|green|blue) [0-9]{1,2}, ){100}end"}],
    "bounded words": [{"regex": "([a-z]{3,9} ){100}end"}],
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    options: dict[str, Any] = {"load_format": "dummy", "quantization": "int8"} if MODEL != "demo" else {}
    return LLM(MODEL, device="cpu", max_model_len=1024, max_num_seqs=BATCH, **options).engine


def requests(name: str) -> Iterator[tuple[str, list[int], SamplingParams]]:
    """Without end, those of one kind of demand in turn; `free` ones demand nothing. Prompts are a token, so that
    newcomers cost a step no more than others.
    """
    demands = [StructuredOutputs(**demand) for demand in DEMANDS.get(name, ())]
    for number in count():
        demand = demands[number % len(demands)] if demands else None
        more: dict[str, Any] = {"structured_outputs": demand} if demand else {"ignore_eos": True}
        params = SamplingParams(temperature=1.0, seed=number, max_tokens=100, **more)
        yield f"{name} {number}", [5 + number % 100], params


def fill_seats(engine: Engine, wanted: Iterator[tuple[str, list[int], SamplingParams]]) -> None:
    for _ in range(BATCH - len(engine.running)):
        engine.add_request(*next(wanted))


def empty_seats(engine: Engine) -> None:
    for request in list(engine.running):
        engine.abort(request.request_id)


@pytest.mark.parametrize("name", DEMANDS)
def bench_masks(engine: Engine, name: str) -> None:
    """Each step is computed twice, with and without its masks: print the medians, and that of the ratios."""
    wanted = requests(name)
    plain, masked = [], []
    run = engine.runner.run

    def run_twice(decision: Any) -> Any:
        if len(decision.scheduled) != BATCH:
            return run(decision)
        started = time.perf_counter()
        compute_without_masks(engine, decision)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        sampled = run(decision)
        masked.append(time.perf_counter() - started)
        return sampled

    engine.runner.run = run_twice  # type: ignore[method-assign]
    try:
        while len(plain) < NUM_STEPS:
            fill_seats(engine, wanted)
            engine.step()
    finally:
        engine.runner.run = run  # type: ignore[method-assign]
        empty_seats(engine)
    ratio = median(b / a for a, b in zip(plain, masked, strict=True))
    print(
        f"\n{name}, {BATCH} sequences: without masks {median(plain) * 1e3:.2f} ms (mean {mean(plain) * 1e3:.2f}), "
        f"with {median(masked) * 1e3:.2f} ms (mean {mean(masked) * 1e3:.2f}), median of ratios {ratio:.3f}"
    )


@pytest.mark.parametrize("name", DEMANDS)
def bench_rate(engine: Engine, name: str) -> None:
    """Steps of structured answers and of free ones in turns: print tokens per second of both."""
    structured, free = requests(name), requests("free")
    rounds = [(rate(engine, structured), rate(engine, free)) for _ in range(NUM_ROUNDS)]
    ours, theirs = (median(one[0] for one in column) for column in zip(*rounds, strict=True))
    ratios = [other / own for (own, _), (other, _) in rounds]
    per_step = mean(own for (_, own), _ in rounds)
    print(
        f"\n{name}, {BATCH} sequences: {ours:.0f} tokens/s, {theirs:.0f} of free text; {per_step:.2f} tokens a step "
        f"and sequence; a token takes {median(ratios):.3f} of the time of a free one ({min(ratios):.3f} to "
        f"{max(ratios):.3f})"
    )


def rate(engine: Engine, wanted: Iterator[tuple[str, list[int], SamplingParams]]) -> tuple[float, float]:
    """Tokens per second, and tokens of a sequence in a step."""
    seconds, num_tokens, num_steps = 0.0, 0, NUM_STEPS // NUM_ROUNDS
    lengths: dict[str, int] = {}
    for _ in range(num_steps):
        fill_seats(engine, wanted)
        started = time.perf_counter()
        outputs = engine.step()
        seconds += time.perf_counter() - started
        for output in outputs:
            length = len(output.outputs[0].token_ids)
            num_tokens += length - lengths.get(output.request_id, 0)
            lengths[output.request_id] = length
    empty_seats(engine)
    return num_tokens / seconds, num_tokens / num_steps / BATCH


def compute_without_masks(engine: Engine, decision: Any) -> None:
    """The same step by the plain graph: it writes the same keys and values."""
    variant = engine.runner._plain
    sampled, width = variant.batch.write(decision)
    variant.rows.fill(sampled)
    symbols = (decision.num_batched_tokens, len(decision.scheduled), len(sampled), width, 0, 0, 0, 0)
    variant.executor.run(symbols)
    variant.executor.synchronize()
    variant.executor.output("token_ids", symbols).tolist()
