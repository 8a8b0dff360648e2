"""A package's proposer: asked for drafts like those of the core, and what becomes of them is counted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from tests.core.engine.engines import open_engine
from tests.core.engine.speculative.drafting import finish
from tests.core.plugins.conftest import fakes
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.observation.engine_stats import EngineStats

__all__ = ["fakes"]

PROMPT = [(11 * token) % 900 + 5 for token in range(9)]
HALF_RIGHT = """
    ANSWER, forgotten = [], []


    class HalfRight:
        def __init__(self, compiled):
            assert compiled.config.speculative_method == "half-right"

        def propose(self, requests, limits):
            return [self._guess(len(one.all_token_ids) - 9, most) for one, most in zip(requests, limits)]

        def forget(self, request_id):
            forgotten.append(request_id)

        def _guess(self, start, most):
            drafts = ANSWER[start : start + 4]
            return [*drafts[:2], *(1 - (token == 1) for token in drafts[2:])][:most]


    @hookimpl
    def register_proposers(registry):
        registry.register("half-right", f"{__name__}:HalfRight", provider="fake-halves")
"""


def answer(engine: Engine) -> Any:
    engine.add_request("one", PROMPT, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    return finish(engine)["one"]


def give_time(engine: Engine, seconds: Callable[[int], float]) -> None:
    """Every step takes so long, by its tokens; finding drafts takes none."""
    now, run = [0.0], engine.runner.run
    assert engine.speculator is not None
    engine.speculator._clock = lambda: now[0]

    def take_time(decision: Any) -> Any:
        now[0] += seconds(decision.num_batched_tokens)
        return run(decision)

    engine.runner.run = take_time  # type: ignore[method-assign]


def test_its_drafts_are_counted(fakes: FakeDistributions) -> None:
    module = import_module(fakes.install("halves", HALF_RIGHT))
    runtime, options = Runtime.boot(), {"max_model_len": 96, "deterministic": True}
    module.ANSWER[:] = answer(open_engine(runtime, "cpu", **options)).outputs[0].token_ids
    engine = open_engine(runtime, "cpu", **options, speculative_method="half-right", num_speculative_tokens=4)
    give_time(engine, lambda num_tokens: 1.0 + 0.001 * num_tokens)
    found = [answer(engine) for _ in range(3)]
    assert [one.outputs[0].token_ids for one in found] == [module.ANSWER] * 3
    stats = EngineStats.of(engine)
    assert stats.num_draft_tokens == sum(one.metrics.num_draft_tokens for one in found) > 60
    assert stats.num_accepted_tokens == sum(one.metrics.num_accepted_tokens for one in found)
    assert stats.acceptance_rate == pytest.approx(0.5, abs=0.2)
    assert module.forgotten == ["one"] * 3
