"""A whole model on the device, compared with the `numpy` device: values and tokens under all engine features."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from aethermind.engine.observation.comparison import ComparisonTolerance, compare
from aethermind.errors import KernelNotFoundError
from aethermind.hal import Backend, DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import resident_bytes, trim_heap
from aethermind.llm import LLM, SamplingParams
from aethermind.runtime import Runtime

__all__: list[str] = []

Open = Callable[..., LLM]
NUM_TOKENS = 24
_LEAK_BYTES = 192 << 10
PROMPTS = ("Once upon a time there was a", "The", "A little fox ran over the snow because it was late and the wind")
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture
def open_model(runtime: Runtime, device: DeviceId, backend: Backend, model: str) -> Iterator[Open]:
    """A function that opens the model on the device; all are closed after the test.

    It skips a test that needs a block size which the device does not take.
    """
    opened: list[LLM] = []

    def open(on: str | None = None, **options: Any) -> LLM:
        sizes, size = backend.capabilities.block_sizes, options.get("block_size")
        if sizes and size is not None and size not in sizes:
            pytest.skip(f"{backend.name} does not take blocks of {size} tokens")
        options = {"dtype": "float32", "max_model_len": 128, "fallback": "allow", **options}
        opened.append(LLM(model, device=on or str(device), runtime=runtime, **options))
        return opened[-1]

    yield open
    for llm in opened:
        llm.close()


@pytest.fixture(scope="session")
def expected(runtime: Runtime, model: str) -> Callable[[str], list[int]]:
    """A function to the tokens that the `numpy` device generates for a prompt alone, in float32."""
    llm = LLM(model, device="numpy", dtype="float32", max_model_len=128, runtime=runtime)
    return cache(lambda prompt: llm.generate(prompt, GREEDY)[0].outputs[0].token_ids)


def answers(llm: LLM, prompts: Any = PROMPTS, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), params)]


def logprobs(llm: LLM, prompts: Any) -> list[list[tuple[int, float]]]:
    """Return the log probabilities of each answer's tokens and of the most likely alternatives."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    found = []
    for output in llm.generate(list(prompts), params):
        steps = output.outputs[0].logprobs
        assert steps, "no log probabilities"
        found.append([(token, logprob.logprob) for step in steps for token, logprob in step.items()])
    return found


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_every_value_is_close_to_the_reference(open_model: Open, fuse: bool) -> None:
    reference, tested = open_model("numpy"), open_model()
    tokens = reference.tokenizer.encode(PROMPTS[0])
    compared = compare(
        reference.engine, tested.engine, tokens, NUM_TOKENS, ComparisonTolerance.of(DType.FLOAT32), fuse=fuse
    )
    first = compared.first_divergence
    assert compared.differences, "no value was compared"
    assert first is None, f"{first.name} of step {first.step} ({first.kernel}): {first.actual}, not {first.expected}"


def test_greedy_tokens_are_those_of_the_reference(open_model: Open, expected: Callable[[str], list[int]]) -> None:
    llm = open_model()
    for prompt in PROMPTS:
        assert answers(llm, [prompt]) == [expected(prompt)]


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_ragged_batches_with_chunked_prefill(
    open_model: Open, expected: Callable[[str], list[int]], block_size: int
) -> None:
    llm = open_model(max_num_batched_tokens=7, max_num_seqs=3, block_size=block_size)
    assert answers(llm) == list(map(expected, PROMPTS))


def test_preempted_requests_that_are_recomputed(open_model: Open, expected: Callable[[str], list[int]]) -> None:
    """The KV cache has too few blocks for all requests: preempted ones are recomputed."""
    llm = open_model(num_kv_blocks=16, block_size=4, enable_prefix_caching=False)
    assert answers(llm) == list(map(expected, PROMPTS))


def test_requests_that_are_swapped_out(open_model: Open, expected: Callable[[str], list[int]]) -> None:
    llm = open_model(num_kv_blocks=16, block_size=4, enable_prefix_caching=False, swap_space=0.25)
    assert answers(llm) == list(map(expected, PROMPTS))


def test_reused_prefixes(open_model: Open, expected: Callable[[str], list[int]]) -> None:
    llm = open_model(block_size=4)
    for _ in range(2):
        assert answers(llm) == list(map(expected, PROMPTS))


def test_several_answers_share_a_prompt(open_model: Open, expected: Callable[[str], list[int]]) -> None:
    """Copy-on-write of a partly filled block."""
    llm = open_model(block_size=16)
    params = SamplingParams(n=3, temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    (output,) = llm.generate(PROMPTS[0], params)
    assert [completion.token_ids for completion in output.outputs] == [expected(PROMPTS[0])] * 3


def test_sampling_with_a_seed(open_model: Open) -> None:
    """Temperature, top-k, top-p, min-p and penalties give the same tokens as on the `numpy` device."""
    params = SamplingParams(
        temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5, max_tokens=NUM_TOKENS
    )
    assert answers(open_model(), params=params) == answers(open_model("numpy"), params=params)


def test_memory_is_freed(open_model: Open, backend: Backend) -> None:
    before = backend.allocator.stats().allocated_bytes
    with closing(open_model()) as llm:
        answers(llm, PROMPTS[:1])
    gc.collect()
    assert backend.allocator.stats().allocated_bytes == before


@pytest.mark.optional
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16], ids=str)
def test_half_precision(open_model: Open, backend: Backend, dtype: DType) -> None:
    if dtype not in backend.capabilities.dtypes:
        pytest.skip(f"{backend.name} does not compute {dtype}")
    reference, tested = (open_model(on, dtype=str(dtype)) for on in ("numpy", None))
    tokens = reference.tokenizer.encode(PROMPTS[0])
    compared = compare(reference.engine, tested.engine, tokens, 8, ComparisonTolerance.of(dtype))
    first = compared.first_divergence
    assert first is None, f"{first.name} of step {first.step} ({first.kernel}): {first.actual}, not {first.expected}"


@pytest.mark.optional
@pytest.mark.parametrize(
    "options", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "int8"}], ids=str
)
def test_quantised_weights(open_model: Open, options: dict[str, str]) -> None:
    """Codes are equal on all devices, so values differ by the rounding of activations only.

    Of two tokens of nearly the same probability, either may be chosen.
    """
    reference, tested = (open_model(on, **options) for on in ("numpy", None))
    tokens = reference.tokenizer.encode(PROMPTS[0])
    compared = compare(reference.engine, tested.engine, tokens, 4, ComparisonTolerance(rtol=0.08, atol=1e-3))
    differences = (difference for difference in compared.differences if difference.operator != "sample_tokens")
    first = next((difference for difference in differences if difference.is_diverging), None)
    assert first is None, f"{first.name} of step {first.step} ({first.kernel}): {first.actual}, not {first.expected}"


@pytest.mark.optional
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_answers_do_not_depend_on_the_batch(open_model: Open, backend: Backend, dtype: DType) -> None:
    """Tokens and log probabilities have the same bits alone, in a batch, and with chunked prefill."""
    if dtype not in backend.capabilities.dtypes:
        pytest.skip(f"{backend.name} does not compute {dtype}")
    try:
        llm = open_model(dtype=str(dtype), deterministic=True)
        in_parts = open_model(dtype=str(dtype), deterministic=True, max_num_batched_tokens=23)
    except KernelNotFoundError as error:
        pytest.skip(f"{backend.name} does not promise it: {error}")
    alone = [logprobs(llm, [prompt])[0] for prompt in PROMPTS]
    assert logprobs(llm, PROMPTS * 3) == alone * 3
    assert logprobs(in_parts, PROMPTS * 3) == alone * 3


def test_memory_does_not_grow_with_steps(open_model: Open, backend: Backend) -> None:
    """Memory does not grow over about 250 steps, by the allocator's statistics and by the system's.

    Permanent allocations are made once, so a leak grows from each round to the next.
    """
    llm = open_model()
    answers(llm)
    held: list[int] = []
    counted: list[int] = []
    for _ in range(6):
        for _ in range(2):
            answers(llm)
        gc.collect()
        trim_heap()
        held.append(resident_bytes() or 0)
        counted.append(backend.allocator.stats().allocated_bytes)
    assert min(after - before for before, after in pairwise(counted)) <= 0, f"buffers are kept: {counted} bytes"
    growth = median(after - before for before, after in pairwise(held))
    assert growth < _LEAK_BYTES, f"some {growth} bytes more with every {2 * NUM_TOKENS} steps"
