"""The first token of prompts that share a long beginning: computed by the first of them, found by the others.

make bench
MODEL=DIR python -m pytest tests/bench/bench_shared_prefix.py -s -q -o python_files='bench_*.py' \
    -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

from aethermind import LLM, SamplingParams

MODEL = os.environ.get("MODEL", "demo")
NUM_SHARED = 2000
NUM_OWN = 16
NUM_ROUNDS = 5


def bench_shared_prefix() -> None:
    """Print the time to the first token with nothing cached and with all but the prompt's own end cached."""
    options: dict[str, Any] = {"load_format": "dummy", "quantization": "int8"} if MODEL != "demo" else {}
    cold, warm = [], []
    with LLM(MODEL, max_model_len=2048, max_num_seqs=4, **options) as llm:
        for turn in range(NUM_ROUNDS):
            shared = [7 + (turn * 37 + index) % 500 for index in range(NUM_SHARED)]
            cold.append(first_token_s(llm, [*shared, *range(600, 600 + NUM_OWN)], 0))
            warm.append(first_token_s(llm, [*shared, *range(700, 700 + NUM_OWN)], NUM_SHARED // 16 * 16))
    share = median(b / a for a, b in zip(cold, warm, strict=True))
    print(
        f"\n{NUM_SHARED} shared tokens and {NUM_OWN} of its own: first token after {median(cold) * 1e3:.1f} ms, "
        f"after {median(warm) * 1e3:.1f} ms where they are cached: {share:.1%}"
    )


def first_token_s(llm: LLM, prompt: list[int], num_cached: int) -> float:
    """Seconds from a request's arrival to its first token, of which exactly so many tokens are reused."""
    (output,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0.0, max_tokens=1))
    assert output.num_cached_tokens == num_cached
    assert output.metrics.first_token_s is not None
    return output.metrics.first_token_s - output.metrics.arrival_s
