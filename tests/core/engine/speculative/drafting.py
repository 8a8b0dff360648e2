"""Scripted proposers and controllers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aethermind.engine.engine import Engine
from aethermind.engine.requests.request import Request
from aethermind.engine.speculative.controller import Candidate, SpeculationController
from aethermind.engine.speculative.speculator import Speculator

__all__ = ["AlwaysMost", "Scripted", "finish", "speculate_with"]


class AlwaysMost(SpeculationController):
    """Chooses as many drafts as the step allows, at any cost."""

    def choose(
        self, candidates: Sequence[Candidate], num_sequences: int, max_drafts: int, *, may_run_trial: bool = True
    ) -> list[int]:
        chosen = []
        for candidate in candidates:
            chosen.append(min(candidate.max_drafts, self._max_drafts, max_drafts))
            max_drafts -= chosen[-1]
        return chosen


class Scripted:
    """Drafts what a function says."""

    def __init__(self, draft: Callable[[Request, int], list[int]]) -> None:
        self._draft = draft
        self.forgotten: list[str] = []

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        return [self._draft(request, max_drafts) for request, max_drafts in zip(requests, limits, strict=True)]

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def speculate_with(engine: Engine, proposer: Any, max_drafts: int = 4) -> Speculator:
    """Let an engine check these drafts at every opportunity."""
    engine.speculator = Speculator(
        proposer, AlwaysMost(max_drafts), engine.cache, engine.compiled.model.config.vocab_size, lambda: 0.0
    )
    return engine.speculator


def finish(engine: Engine) -> dict[str, Any]:
    """The last outputs of all requests, by id."""
    finished = {}
    while engine.has_unfinished:
        finished.update({one.request_id: one for one in engine.step() if one.finished})
    return finished
