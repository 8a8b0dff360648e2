"""A request's keys and values as bytes, taken from one engine and gone on with in another."""

from __future__ import annotations

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.kv_offload import fingerprint
from aethermind.errors import CacheContentError

PROMPT = "Once upon a time there was a little fox who lived in a wood and looked for a friend"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def open_demo(runtime: Runtime, device: str, kv_cache_dtype: str, num_ranks: int = 1) -> tuple[LLM, MemoryContents]:
    llm = LLM(
        "demo", device=device, dtype="float32", kv_cache_dtype=kv_cache_dtype, block_size=4, max_model_len=96,
        tensor_parallel_size=num_ranks, runtime=runtime,
    )  # fmt: skip
    return llm, MemoryContents(llm.engine.runner.kv_memory, fingerprint(llm.engine.compiled))


def save_mid_way(llm: LLM, contents: MemoryContents) -> tuple[bytes, list[int]]:
    """The keys and values of a request that is in the middle of its answer, and their tokens."""
    engine = llm.engine
    engine.add_request("r", llm.tokenizer.encode(PROMPT), GREEDY)
    while not engine.running or len(engine.running[0].output_token_ids) < 10:
        engine.step()
    request = engine.running[0]
    tokens = [*request.prompt_token_ids, *request.output_token_ids][: engine.cache.num_tokens("r")]
    saved = engine.cache.save("r", contents, tokens)
    assert saved.outcome is CacheOutcome.OK
    engine.abort("r")
    return saved.data, tokens


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_another_engine_resumes_saved_sequences(runtime: Runtime, device: str, kv_cache_dtype: str) -> None:
    assert_gone_on_with(runtime, device, kv_cache_dtype)


@pytest.mark.parametrize(("of_first", "of_second"), [(1, 2), (2, 1)])
def test_an_engine_with_other_ranks_resumes_saved_sequences(runtime: Runtime, of_first: int, of_second: int) -> None:
    assert_gone_on_with(runtime, "cpu", "int8", of_first, of_second)


def assert_gone_on_with(
    runtime: Runtime, device: str, kv_cache_dtype: str, of_first: int = 1, of_second: int = 1
) -> None:
    first, contents = open_demo(runtime, device, kv_cache_dtype, of_first)
    whole = first.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    data, tokens = save_mid_way(first, contents)
    second, contents = open_demo(runtime, device, kv_cache_dtype, of_second)
    cache = second.engine.cache
    assert cache.load("s", data, contents, tokens).num_cached_tokens == len(tokens)
    assert cache.release("s", tokens) is CacheOutcome.OK
    rest = SamplingParams(temperature=0.0, max_tokens=24 - 10, ignore_eos=True)
    prompt = [*second.tokenizer.encode(PROMPT), *whole[:10]]
    (output,) = second.generate({"prompt_token_ids": prompt}, rest)
    assert output.outputs[0].token_ids == whole[10:]
    assert output.num_cached_tokens == len(tokens) // 4 * 4
    for llm in (first, second):
        llm.close()


def test_sequences_of_another_model_are_refused(runtime: Runtime) -> None:
    first, contents = open_demo(runtime, "cpu", "auto")
    data, tokens = save_mid_way(first, contents)
    other, others = open_demo(runtime, "cpu", "int8")
    cache, damaged = first.engine.cache, bytearray(data)
    damaged[len(data) // 2] ^= 1
    for attempt in (
        lambda: other.engine.cache.load("s", data, others, tokens),
        lambda: cache.load("s", bytes(damaged), contents, tokens),
        lambda: cache.load("s", data, contents, [5, *tokens[1:]]),
    ):
        with pytest.raises(CacheContentError):
            attempt()
    assert first.engine.cache.num_available_blocks == first.engine.compiled.num_kv_blocks
    for llm in (first, other):
        llm.close()
