"""Answers of one model, alone and in all kinds of steps, to compare bit by bit; and those of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aethermind import LLM, Runtime, SamplingParams

__all__ = ["GREEDY", "PROMPTS", "Opened", "answers", "answers_alone", "answers_of_ranks", "opening"]

PROMPTS: Any = [{"prompt_token_ids": [7 * n + 3 * i for i in range(n)]} for n in (21, 5, 33, 1, 12)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, logprobs=3, ignore_eos=True)
Opened = Callable[..., LLM]


@contextmanager
def opening(device: str, runtime: Runtime, directory: Path) -> Iterator[Opened]:
    """Opens the model on a device; what is open at the end is closed."""
    llms: list[LLM] = []

    def load(**options: Any) -> LLM:
        given = {"device": device, "dtype": "float32", "tokenizer": "demo", "fallback": "allow"}
        llms.append(LLM(directory, runtime=runtime, deterministic=True, num_threads=1, **{**given, **options}))
        return llms[-1]

    yield load
    for llm in llms:
        llm.close()


def answers(llm: LLM, prompts: Any) -> list[Any]:
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in llm.generate(prompts, GREEDY)]


def answers_alone(opened: Opened) -> list[Any]:
    """Each prompt's answer without any other."""
    llm = opened(enable_prefix_caching=False)
    return [answers(llm, prompt)[0] for prompt in PROMPTS]


def answers_of_ranks(
    size: int, runtime: Runtime, directory: Path, quantization: str | None, params: SamplingParams = GREEDY
) -> tuple[list[list[int]], list[float]]:
    """The tokens of all prompts' answers, and all log probabilities, by so many ranks of the CPU."""
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_threads": 1, "fallback": "allow"}
    options |= {"tokenizer": "demo", "quantization": quantization, "runtime": runtime}
    with LLM(directory, tensor_parallel_size=size, **options) as llm:
        outputs = [one.outputs[0] for one in llm.generate(PROMPTS, params)]
    logprobs = [one.logprob for output in outputs for step in output.logprobs or () for one in step.values()]
    return [one.token_ids for one in outputs], logprobs
