"""What prompt lookup wins where an answer repeats its text, and costs where it does not: engines with and without it in
turns, one request at a time.

make bench
python -m tests.bench.bench_speculation Qwen2-0.5B   # random weights in a model's shapes
"""

from __future__ import annotations

import statistics
import sys
from random import Random
from typing import Any

import pytest

from aethermind import LLM, RequestOutput, SamplingParams

NUM_TOKENS, NUM_ROUNDS = 128, 5
KINDS = ("repeats", "random", "misleading")


def text(kind: str) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
    """A prompt, how to go on, and options: an answer that repeats, one without any match, one with only wrong ones."""
    random = Random(3)
    if kind == "repeats":
        return [random.randrange(1000) for _ in range(16)] * 12, {"temperature": 0.0}, {}
    if kind == "random":
        return [random.randrange(2000) for _ in range(192)], {"temperature": 1.0, "seed": 5}, {}
    allowed = list(range(40))
    return random.choices(allowed, k=192), {"allowed_token_ids": allowed, "seed": 5}, {"prompt_lookup_min": 1}


def speed(output: RequestOutput) -> float:
    metrics = output.metrics
    assert metrics.first_token_s is not None
    assert metrics.finished_s is not None
    return (NUM_TOKENS - 1) / (metrics.finished_s - metrics.first_token_s)


def compare(model: str, kind: str, **options: Any) -> None:
    """Print tokens per second of both, and the median of their ratios."""
    prompt, params, more = text(kind)
    options |= {"max_model_len": 1024, "max_num_seqs": 1, "enable_prefix_caching": False}
    plain, drafting = LLM(model, **options), LLM(model, **options, speculative_method="prompt_lookup", **more)
    speeds: list[tuple[float, float]] = []
    for _ in range(NUM_ROUNDS):
        wanted = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **params)
        outputs = [llm.generate({"prompt_token_ids": prompt}, wanted)[0] for llm in (plain, drafting)]
        speeds.append((speed(outputs[0]), speed(outputs[1])))
    ratio = statistics.median(drafted / alone for alone, drafted in speeds)
    alone, drafted = (statistics.median(column) for column in zip(*speeds, strict=True))
    metrics = outputs[1].metrics
    print(
        f"{model} {kind}: {alone:.1f} tokens/s, {drafted:.1f} with prompt lookup, {ratio:.2f} × in the median round "
        f"({metrics.num_accepted_tokens} of {metrics.num_draft_tokens} drafts right at last)"
    )


@pytest.mark.parametrize("kind", KINDS)
def bench_prompt_lookup(kind: str) -> None:
    """The demo model, whose steps take less than a millisecond."""
    compare("demo", kind)


if __name__ == "__main__":
    for kind in KINDS:
        compare(sys.argv[1], kind, load_format="dummy", quantization="int8")
