"""The logits behind every token of a text: the same as those of its prefixes one by one."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.text_pass import text_logits
from aethermind.errors import InvalidArgumentError, OutOfMemoryError


@pytest.fixture(scope="module")
def llm(runtime: Runtime) -> LLM:
    return LLM(
        "demo",
        device="numpy",
        dtype="float32",
        max_model_len=48,
        num_kv_blocks=2,
        max_num_seqs=40,
        max_num_batched_tokens=40,
        runtime=runtime,
    )


def test_rows_are_those_of_prefixes(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Once upon a time there was a fox who")[:9]
    rows = text_logits(llm.engine, ids)
    assert (rows.shape, rows.dtype) == ((len(ids), llm.engine.compiled.model.config.vocab_size), np.float32)
    for length in (1, 4, len(ids)):
        llm.generate({"prompt_token_ids": ids[:length]}, SamplingParams(temperature=0.0, max_tokens=1))
        np.testing.assert_allclose(rows[length - 1], llm.engine.runner.logits(1)[0], rtol=1e-4, atol=1e-4)


def test_the_cache_is_as_before(llm: LLM) -> None:
    before = llm.engine.cache.num_free_blocks
    first = text_logits(llm.engine, range(32))
    assert llm.engine.cache.num_free_blocks == before
    np.testing.assert_array_equal(text_logits(llm.engine, range(32)), first)


def test_too_few_free_blocks_are_an_error_without_leftovers(llm: LLM) -> None:
    with pytest.raises(OutOfMemoryError, match="33 tokens"):
        text_logits(llm.engine, range(33))
    assert llm.engine.cache.num_free_blocks == 2
    assert len(text_logits(llm.engine, [3])) == 1


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("wrong", [2**31 - 1, -1, None])
def test_ids_outside_the_vocabulary_reach_no_kernel(runtime: Runtime, device: str, wrong: int | None) -> None:
    """A native kernel would read beyond the table. One past its end is refused, too."""
    options = {"max_model_len": 48, "max_num_seqs": 8, "num_threads": 1}
    with LLM("demo", device=device, runtime=runtime, **options) as llm:
        expected, num_free = text_logits(llm.engine, [1, 2, 3]), llm.engine.cache.num_free_blocks
        bad = llm.engine.compiled.model.config.vocab_size if wrong is None else wrong
        with pytest.raises(InvalidArgumentError, match=f"Token id {bad} is out of range"):
            text_logits(llm.engine, [1, bad, 3])
        assert llm.engine.cache.num_free_blocks == num_free
        np.testing.assert_array_equal(text_logits(llm.engine, [1, 2, 3]), expected)
