"""Several answers to one prompt: one request to whoever asks, and one prompt to compute."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.errors import InvalidArgumentError

PROMPT = list(range(5, 25))


def test_one_answer_of_several_is_no_request_of_its_own(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null")
    engine.add_request("a", PROMPT, SamplingParams(temperature=1.0, max_tokens=6, n=3, ignore_eos=True))
    for _ in range(3):  # while its siblings wait to fork it, while they run
        assert engine.abort("a/1") is None
        with pytest.raises(InvalidArgumentError, match="'a/1' is in use"):
            engine.add_request("a/1", PROMPT, SamplingParams())
        engine.step()
    ended = engine.abort("a")
    assert ended is not None
    assert [one.finish_reason for one in ended.outputs] == ["abort"] * 3
    assert not engine.has_unfinished
    assert engine.cache.num_sequences == 0
