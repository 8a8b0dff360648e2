"""What structured output adds to a decode step: each step is computed twice, with and without its masks.

make bench
MODEL=DIR BATCH=16 python -m pytest tests/bench/bench_structured_output.py -s -q -o python_files='bench_*.py' \
    -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random, so answers are what the grammar leaves of noise.
"""

from __future__ import annotations

import os
import time
from itertools import cycle, islice
from statistics import mean, median
from typing import Any

import pytest
from tests.end_to_end.schemas import SCHEMAS

from aethermind import LLM, SamplingParams, StructuredOutputs
from aethermind.engine.engine import Engine

MODEL = os.environ.get("MODEL", "demo")
BATCH = int(os.environ.get("BATCH", "16"))
NUM_STEPS = int(os.environ.get("STEPS", "150"))

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


@pytest.mark.parametrize("name", DEMANDS)
def bench_masks(engine: Engine, name: str) -> None:
    """Print the median and the mean step, with and without masks, and the median of the ratios step by step."""
    wanted = cycle(StructuredOutputs(**demand) for demand in DEMANDS[name])
    num_added = 0
    plain, masked = [], []
    while len(plain) < NUM_STEPS:
        for demand in islice(wanted, BATCH - len(engine.running)):
            params = SamplingParams(temperature=1.0, seed=num_added, max_tokens=100, structured_outputs=demand)
            engine.add_request(f"{name} {num_added}", [5 + num_added % 100, 6, 7, 8], params)
            num_added += 1
        decision = engine.scheduler.schedule(0.0, engine.waiting, engine.running, engine.budget)
        moments = [time.perf_counter()]
        if decision.num_decodes == BATCH:
            compute_without_masks(engine, decision)
            moments.append(time.perf_counter())
        sampled = engine.runner.run(decision)
        moments.append(time.perf_counter())
        if len(moments) == 3:
            plain.append(moments[1] - moments[0])
            masked.append(moments[2] - moments[1])
        engine.scheduler.advance(decision)
        for token in sampled:
            engine._append(token, 0.0)
    for request in list(engine.running):
        engine.abort(request.request_id)
    ratio = median(b / a for a, b in zip(plain, masked, strict=True))
    print(
        f"\n{name}, {BATCH} sequences: without masks {median(plain) * 1e3:.2f} ms (mean {mean(plain) * 1e3:.2f}), "
        f"with {median(masked) * 1e3:.2f} ms (mean {mean(masked) * 1e3:.2f}), median of ratios {ratio:.3f}"
    )


def compute_without_masks(engine: Engine, decision: Any) -> None:
    """The same step by the plain graph: it writes the same keys and values."""
    variant = engine.runner._plain
    sampled, width = variant.batch.write(decision)
    variant.rows.fill(sampled)
    symbols = (decision.num_batched_tokens, len(decision.scheduled), len(sampled), width, 0, 0, 0, 0)
    variant.executor.run(symbols)
    variant.executor.synchronize()
    variant.executor.output("token_ids", symbols).tolist()
