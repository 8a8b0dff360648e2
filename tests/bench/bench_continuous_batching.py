"""Sixteen requests at once against the same requests one after another, in turns.

make bench
MODEL=DIR python -m pytest tests/bench/bench_continuous_batching.py -s -q -o python_files='bench_*.py' \
    -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

from aethermind import LLM, SamplingParams

MODEL = os.environ.get("MODEL", "demo")
NUM_REQUESTS = 16
NUM_ALONE = 4
"""As many are served one by one, for each round to be short: their throughput is that of sixteen."""

NUM_PROMPT_TOKENS = 64
NUM_TOKENS = 48
NUM_ROUNDS = 4


def bench_sixteen_at_once() -> None:
    """Print answers' tokens a second, prompts included in the time, and the median of the ratios."""
    options: dict[str, Any] = {"load_format": "dummy", "quantization": "int8"} if MODEL != "demo" else {}
    with LLM(MODEL, max_model_len=256, max_num_seqs=NUM_REQUESTS, enable_prefix_caching=False, **options) as llm:
        served(llm, NUM_REQUESTS, num_tokens=4)
        alone, together = [], []
        for _ in range(NUM_ROUNDS):
            alone.append(NUM_ALONE * NUM_TOKENS / sum(served(llm, 1) for _ in range(NUM_ALONE)))
            together.append(NUM_REQUESTS * NUM_TOKENS / served(llm, NUM_REQUESTS))
    ratio = median(b / a for a, b in zip(alone, together, strict=True))
    print(
        f"\none by one {median(alone):.1f} tokens/s, {NUM_REQUESTS} at once {median(together):.1f} tokens/s: "
        f"{ratio:.1f} times, by round {', '.join(f'{b / a:.1f}' for a, b in zip(alone, together, strict=True))}"
    )


def served(llm: LLM, num_requests: int, num_tokens: int = NUM_TOKENS) -> float:
    """Seconds until so many requests are answered."""
    prompts: list[Any] = [
        {"prompt_token_ids": [7 + (31 * row + index) % 500 for index in range(NUM_PROMPT_TOKENS)]}
        for row in range(num_requests)
    ]
    started = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True))
    return time.perf_counter() - started
