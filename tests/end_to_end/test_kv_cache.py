"""The KV cache from outside: however it is cut and however short it is, the tokens are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.end_to_end.conftest import assert_idle

from aethermind import LLM, RequestOutput, SamplingParams
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.errors import InvalidArgumentError

PROMPTS = [
    "Once upon a time",
    "The old fox",
    "A",
    "One day, a little girl named Lily found a needle in her room.",
    "Tom",
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

each_quantized = pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])


def tokens(results: list[RequestOutput]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_block_size_does_not_change_tokens(open_demo: Callable[..., LLM], demo: LLM, block_size: int) -> None:
    llm = open_demo(block_size=block_size)
    assert tokens(llm.generate(PROMPTS, PARAMS)) == tokens(demo.generate(PROMPTS, PARAMS))
    assert_idle(llm)


@pytest.mark.parametrize(("num_kv_blocks", "block_size"), [(12, 4), (50, 1), (4, 16)])
def test_preemption_does_not_change_tokens(
    open_demo: Callable[..., LLM], demo: LLM, num_kv_blocks: int, block_size: int
) -> None:
    """Too few blocks for all: requests give theirs up and compute again what they had."""
    llm = open_demo(num_kv_blocks=num_kv_blocks, block_size=block_size)
    num_preemptions = 0

    def count(_: RequestOutput) -> None:
        nonlocal num_preemptions
        num_preemptions = max(num_preemptions, sum(request.num_preemptions for request in llm.engine.waiting))

    pressed = llm.generate(PROMPTS, PARAMS, on_output=count)
    assert num_preemptions > 0
    assert tokens(pressed) == tokens(demo.generate(PROMPTS, PARAMS))
    assert_idle(llm)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_swapping_does_not_change_tokens(open_demo: Callable[..., LLM], kv_cache_dtype: str) -> None:
    """Shared prefixes and several answers a prompt included."""
    params = [
        PARAMS,
        PARAMS,
        SamplingParams(temperature=1.0, seed=4, n=3, max_tokens=20, ignore_eos=True),
        PARAMS,
        PARAMS,
    ]

    def answers(llm: LLM) -> list[list[list[int]]]:
        results = llm.generate(PROMPTS, params)
        return [[output.token_ids for output in result.outputs] for result in results]

    plain = answers(open_demo(kv_cache_dtype=kv_cache_dtype))
    llm = open_demo(kv_cache_dtype=kv_cache_dtype, num_kv_blocks=14, block_size=4, swap_space=0.01)
    llm.engine.costs.seconds_per_token = 1e6
    assert answers(llm) == plain
    stats = EngineStats.of(llm.engine)
    assert stats.swapped_out_bytes == stats.swapped_in_bytes > 0
    assert stats.num_swapped_blocks == 0
    assert_idle(llm)


@each_quantized
@pytest.mark.parametrize(("num_kv_blocks", "block_size"), [(None, 16), (None, 5), (12, 4)])
def test_a_quantized_cache_does_not_depend_on_block_size_and_chunks(
    open_demo: Callable[..., LLM], kv_cache_dtype: str, num_kv_blocks: int | None, block_size: int
) -> None:
    """Preemption and shared prefixes included: values and scales move with their blocks."""
    plain = tokens(open_demo(kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False).generate(PROMPTS, PARAMS))
    llm = open_demo(kv_cache_dtype=kv_cache_dtype, num_kv_blocks=num_kv_blocks, block_size=block_size)
    assert tokens(llm.generate(PROMPTS, PARAMS)) == plain
    assert tokens(llm.generate(PROMPTS, PARAMS)) == plain
    assert_idle(llm)


@each_quantized
def test_a_quantized_cache_on_two_devices(open_demo: Callable[..., LLM], kv_cache_dtype: str) -> None:
    """The reference's definition, and kernels that were written for it."""
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    results = [
        tokens(open_demo(kv_cache_dtype=kv_cache_dtype, dtype="float32", device=device).generate(PROMPTS, params))
        for device in ("cpu", "numpy")
    ]
    assert results[0] == results[1]


@each_quantized
def test_the_size_of_a_quantized_cache(open_demo: Callable[..., LLM], kv_cache_dtype: str) -> None:
    options = {"dtype": "bfloat16", "num_kv_blocks": 8}
    plain, coded = (open_demo(kv_cache_dtype=dtype, **options) for dtype in ("auto", kv_cache_dtype))
    spec = coded.engine.compiled.cache_spec
    assert coded.info.kv_cache_bytes == 8 * spec.bytes_per_block
    head_dim = coded.engine.compiled.model.config.head_dim
    assert coded.info.kv_cache_bytes / plain.info.kv_cache_bytes == (head_dim + 4) / (2 * head_dim)


def test_a_cache_dtype_that_does_not_fit_is_refused(open_demo: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidArgumentError, match="int8 or fp8 as kv_cache_dtype"):
        open_demo(kv_cache_dtype="float16", dtype="float32")
    with pytest.raises(InvalidArgumentError, match="kv_cache_dtype should be one of auto"):
        open_demo(kv_cache_dtype="int7")


def test_preempted_requests_sample_the_same_tokens(open_demo: Callable[..., LLM], demo: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True, repetition_penalty=1.1, logprobs=1)
    llm = open_demo(num_kv_blocks=12, block_size=4)
    assert tokens(llm.generate(PROMPTS, params)) == tokens(demo.generate(PROMPTS, params))


def test_a_short_cache_bounds_the_context(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(num_kv_blocks=2, block_size=8)
    assert llm.info.max_model_len == 16
    (result,) = llm.generate("A", SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    assert len(result.prompt_token_ids) + len(result.outputs[0].token_ids) == 16


@pytest.mark.parametrize(
    "params", [PARAMS, SamplingParams(temperature=0.7, repetition_penalty=1.2, logprobs=3, seed=1)]
)
def test_a_decode_step_allocates_nothing(open_demo: Callable[..., LLM], params: SamplingParams) -> None:
    """Counted by the device's allocator, across block boundaries, for plain and for adjusted sampling."""
    llm = open_demo(block_size=4)
    allocator = llm.engine.compiled.open_device.backend.allocator
    for index, prompt in enumerate(PROMPTS):
        llm.engine.add_request(str(index), llm.tokenizer.encode(prompt), params)
    llm.engine.step()
    before = allocator.stats().num_allocations
    for _ in range(12):
        assert len(llm.engine.step()) == len(PROMPTS)
    assert allocator.stats().num_allocations == before


def test_a_token_keeps_the_slot_that_it_was_written_to(
    open_demo: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is written once, to a slot of its own, which stays its own until the request ends; then all are free."""
    llm = open_demo(block_size=4, max_num_batched_tokens=16, max_num_seqs=8, enable_prefix_caching=False)
    runner, cache = llm.engine.runner, llm.engine.cache
    slots: dict[tuple[str, int], int] = {}
    run = runner.run

    def noting(decision: ScheduleDecision) -> Any:
        sampled = run(decision)
        written = iter(runner.executor.host_inputs["slot_mapping"][: decision.num_batched_tokens].tolist())
        for request, num_tokens, _ in decision.scheduled:
            for index in range(request.num_computed_tokens, request.num_computed_tokens + num_tokens):
                assert (request.request_id, index) not in slots
                slots[request.request_id, index] = next(written)
        return sampled

    def check(_: RequestOutput) -> None:
        running = {request.request_id for request in llm.engine.running}
        kept = {token: slot for token, slot in slots.items() if token[0] in running}
        assert kept == {(name, index): cache.slot(name, index) for name, index in kept}
        assert len(set(kept.values())) == len(kept)

    monkeypatch.setattr(runner, "run", noting)
    lengths = [SamplingParams(temperature=0.0, max_tokens=4 + 5 * index, ignore_eos=True) for index in range(5)]
    results = llm.generate(PROMPTS, lengths, on_output=check)
    assert len(slots) == sum(len(result.prompt_token_ids) + len(result.outputs[0].token_ids) - 1 for result in results)
    assert_idle(llm)
