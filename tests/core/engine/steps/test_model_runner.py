"""The effects of a step that fails."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.errors import OutOfMemoryError

PROMPT = list(range(5, 16))
"""Ends within a block, so that siblings copy it."""


def answers(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, *, does_fail: bool) -> list[list[int]]:
    """Three answers to one prompt, of which a step fails that begins with copies of a block."""

    def fail(*_: Any) -> None:
        raise OutOfMemoryError("no memory for the arena of another graph")

    engine = open_engine(runtime, block_size=4, enable_prefix_caching=False)
    engine.add_request("a", PROMPT, SamplingParams(temperature=1.0, seed=1, max_tokens=6, n=3, ignore_eos=True))
    engine.step()
    if does_fail:
        engine.add_request("b", PROMPT, SamplingParams(max_tokens=5, logit_bias={5: 1.0}))
        with monkeypatch.context() as patched:
            patched.setattr(engine.runner, "_loaded_graph", fail)
            with pytest.raises(OutOfMemoryError):
                engine.step()
        engine.abort("b")
    while engine.has_unfinished:
        (last,) = engine.step()
    return [one.token_ids for one in last.outputs]


def test_block_copies_are_done_even_if_the_step_fails(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(runtime, monkeypatch, does_fail=True) == answers(runtime, monkeypatch, does_fail=False)
