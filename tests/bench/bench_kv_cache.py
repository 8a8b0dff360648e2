"""What the KV cache is worth: a step that reads it against computing the whole sequence again.

make bench
"""

from __future__ import annotations

import statistics
import time

import pytest

from aethermind import LLM, SamplingParams


@pytest.mark.parametrize("num_tokens", [64, 256, 1024])
def bench_decode_step_against_recomputing(num_tokens: int) -> None:
    """Print the time of a decode step after `num_tokens` tokens and of a prefill of as many, and their ratio."""
    llm = LLM("demo", device="auto", max_num_batched_tokens=2048, max_num_seqs=1, enable_prefix_caching=False)
    prompt = {"prompt_token_ids": [7 + i % 500 for i in range(num_tokens)]}
    steps, recomputations = [], []
    for _ in range(5):
        stream = llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=17, ignore_eos=True))
        started = time.perf_counter()
        next(stream)
        recomputations.append(time.perf_counter() - started)
        started = time.perf_counter()
        count = sum(1 for _ in stream)
        steps.append((time.perf_counter() - started) / count)
    step, recomputation = statistics.median(steps), statistics.median(recomputations)
    print(
        f"\n{llm.info.device} after {num_tokens} tokens: with cache {step * 1e3:.2f} ms, "
        f"recomputed {recomputation * 1e3:.2f} ms, saved {1 - step / recomputation:.0%}"
    )
