"""What a decode step costs in Python: the null device computes nothing, so all that is left is ours.

make bench
"""

from __future__ import annotations

import time

import pytest

from aethermind import LLM, SamplingParams

NUM_STEPS = 1000


@pytest.mark.parametrize("batch_size", [1, 16])
def bench_step_cost(batch_size: int) -> None:
    """Print the mean and the median cost of `engine.advance()`, the step of `LLM.generate` and of servers."""
    engine = LLM("demo", device="null").engine
    params = SamplingParams(temperature=0.0, max_tokens=NUM_STEPS + 10, ignore_eos=True)
    for index in range(batch_size):
        engine.add_request(str(index), [1, 2, 3, 4], params)
    for _ in range(5):
        engine.step()
    costs = []
    for _ in range(NUM_STEPS):
        started = time.perf_counter()
        outputs = engine.advance()
        costs.append((time.perf_counter() - started) * 1e6)
    assert len(outputs) == batch_size
    mean, median = sum(costs) / len(costs), sorted(costs)[len(costs) // 2]
    print(f"\nPython cost of a decode step, batch {batch_size}: mean {mean:.0f} µs, median {median:.0f} µs")
