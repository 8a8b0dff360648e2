"""Prompts that share a long beginning: computed by the first of them, found by the others, one later or all at once.

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
NUM_AT_ONCE = 8


OPTIONS: dict[str, Any] = {"load_format": "dummy", "quantization": "int8"} if MODEL != "demo" else {}


def bench_shared_prefix() -> None:
    """Print the time to the first token with nothing cached and with all but the prompt's own end cached."""
    cold, warm = [], []
    with LLM(MODEL, max_model_len=2048, max_num_seqs=4, **OPTIONS) as llm:
        for turn in range(NUM_ROUNDS):
            shared = [7 + (turn * 37 + index) % 500 for index in range(NUM_SHARED)]
            cold.append(first_token_s(llm, [*shared, *range(600, 600 + NUM_OWN)], 0))
            warm.append(first_token_s(llm, [*shared, *range(700, 700 + NUM_OWN)], NUM_SHARED // 16 * 16))
    share = median(b / a for a, b in zip(cold, warm, strict=True))
    print(
        f"\n{NUM_SHARED} shared tokens and {NUM_OWN} of its own: first token after {median(cold) * 1e3:.1f} ms, "
        f"after {median(warm) * 1e3:.1f} ms where they are cached: {share:.1%}"
    )


def bench_shared_prefix_at_once() -> None:
    """Print the time until some requests that come at once have their first tokens: unlike prompts, and alike ones."""
    with LLM(MODEL, max_model_len=2048, max_num_seqs=NUM_AT_ONCE, **OPTIONS) as llm:
        first_token_s(llm, [5] * 64, 0)
        unlike, alike = (all_first_tokens_s(llm, is_shared=is_shared) for is_shared in (False, True))
    print(
        f"\n{NUM_AT_ONCE} prompts of {NUM_SHARED + NUM_OWN} tokens at once: all first tokens after {unlike:.2f} s, "
        f"after {alike:.2f} s where {NUM_SHARED} tokens are the same: {alike / unlike:.1%}"
    )


def all_first_tokens_s(llm: LLM, *, is_shared: bool) -> float:
    """Seconds until the last of some requests has its first token; they go on for a while after it."""
    firsts = [900] * NUM_AT_ONCE if is_shared else range(800, 800 + NUM_AT_ONCE)
    beginnings = [[first, *range(NUM_SHARED - 1)] for first in firsts]
    prompts = [{"prompt_token_ids": [*one, *range(600 + index, 616 + index)]} for index, one in enumerate(beginnings)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
    ends = [output.metrics.first_token_s or 0.0 for output in outputs]
    return max(ends) - min(output.metrics.arrival_s for output in outputs)


def first_token_s(llm: LLM, prompt: list[int], num_cached: int) -> float:
    """Seconds from a request's arrival to its first token, of which exactly so many tokens are reused."""
    (output,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0.0, max_tokens=1))
    assert output.num_cached_tokens == num_cached
    assert output.metrics.first_token_s is not None
    return output.metrics.first_token_s - output.metrics.arrival_s
