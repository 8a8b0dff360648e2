"""What deciding on a step and writing its batch costs in Python, by sequences: the null device computes nothing.

make bench
"""

from __future__ import annotations

import time
from statistics import median

import pytest

from aethermind import LLM, SamplingParams

NUM_STEPS = 300


@pytest.mark.parametrize("num_seqs", [1, 16, 64, 256])
def bench_scheduler(num_seqs: int) -> None:
    """Print the median cost of a decode step, against the 100 µs + 5 µs a sequence that it may have."""
    engine = LLM(
        "demo",
        device="null",
        load_format="dummy",
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=512,
        num_kv_blocks=256 * 32,
    ).engine
    params = SamplingParams(temperature=0.7, max_tokens=400, ignore_eos=True)
    for index in range(num_seqs):
        engine.add_request(str(index), [1 + index % 50, 2, 3, 4] * (1 + index % 8), params)
    for _ in range(8):
        engine.step()
    variant = engine.runner._plain
    costs: dict[str, list[float]] = {"schedule": [], "batch": [], "rows": [], "advance": []}
    for _ in range(NUM_STEPS):
        moments = [time.perf_counter()]
        decision = engine.scheduler.schedule(0.0, engine.waiting, engine.running, engine.budget)
        moments.append(time.perf_counter())
        sampled, _ = variant.batch.write(decision)
        moments.append(time.perf_counter())
        variant.rows.fill(sampled)
        moments.append(time.perf_counter())
        engine.scheduler.advance(decision)
        moments.append(time.perf_counter())
        for seconds, begin, end in zip(costs.values(), moments, moments[1:], strict=False):
            seconds.append((end - begin) * 1e6)
        for request in sampled:
            request.append_token(5)
    medians = {name: median(values) for name, values in costs.items()}
    parts = ", ".join(f"{name} {value:.0f}" for name, value in medians.items())
    print(f"\n{num_seqs} sequences: {sum(medians.values()):.0f} µs ({parts}), allowed {100 + 5 * num_seqs} µs")
    assert len(sampled) == num_seqs
