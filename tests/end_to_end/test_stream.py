"""Streams: the answer so far, token by token, several at once, and ended early."""

from __future__ import annotations

from contextlib import closing
from itertools import islice, pairwise

import pytest

from aethermind import LLM, SamplingParams
from aethermind.errors import AetherMindError

PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


def test_a_stream_grows_to_the_text_of_generate(demo: LLM) -> None:
    (whole,) = demo.generate("Once upon a time", PARAMS)
    outputs = list(demo.stream("Once upon a time", PARAMS))
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 11))
    assert [output.finished for output in outputs] == [False] * 9 + [True]
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == whole.outputs[0].text
    assert outputs[-1].outputs[0].token_ids == whole.outputs[0].token_ids


def test_text_that_may_become_a_stop_string_is_held_back(demo: LLM) -> None:
    (whole,) = demo.generate("Once upon a time", PARAMS)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 :][:6]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, stop=[stop])
    for output in demo.stream("Once upon a time", params):
        assert text[: text.index(stop)].startswith(output.outputs[0].text)
    assert output.outputs[0].text == text[: text.index(stop)]


def test_closing_a_stream_frees_its_blocks(demo: LLM) -> None:
    stream = demo.stream("Once upon a time", PARAMS)
    with closing(stream):  # type: ignore[type-var]
        assert len(list(islice(stream, 3))) == 3
        assert demo.engine.cache.num_available_blocks < demo.engine.compiled.num_kv_blocks
    assert not demo.engine.has_unfinished


def test_a_stream_and_a_batch_at_the_same_time(demo: LLM) -> None:
    """A step computes for all callers, and each gets its own tokens."""
    prompts = ["Once upon a time", "The old fox", "A little boy"]
    expected = [result.outputs[0].token_ids for result in demo.generate(prompts, PARAMS)]
    first, second = demo.stream(prompts[0], PARAMS), demo.stream(prompts[1], PARAMS)
    next(first)
    next(second)
    (third,) = demo.generate(prompts[2], PARAMS)
    assert third.outputs[0].token_ids == expected[2]
    assert list(first)[-1].outputs[0].token_ids == expected[0]
    assert list(second)[-1].outputs[0].token_ids == expected[1]


def test_aborting_a_request_ends_its_stream_with_an_error(demo: LLM) -> None:
    stream = demo.stream("Once upon a time", PARAMS)
    demo.engine.abort(next(stream).request_id)
    with pytest.raises(AetherMindError, match="aborted"):
        next(stream)
