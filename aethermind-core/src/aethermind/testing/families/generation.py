"""Running an engine on a checkpoint while looking at every row of logits it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.llm import LLM, SamplingParams

__all__ = ["Generated", "generate"]


@dataclass
class Generated:
    """One request: its prompt, what was generated, and the logits that each token was taken from, float32 [V] each."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logits: list[np.ndarray[Any, Any]] = field(default_factory=list)

    @property
    def all_token_ids(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt_token_ids, *self.token_ids]


def generate(
    llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, stagger: int = 0
) -> tuple[list[Generated], list[ScheduleDecision]]:
    """Greedy tokens for all prompts in one engine, a new prompt joining every `stagger` steps (0: all at once).

    Returns the requests and every step's decision, whose entries say what was mixed.
    """
    engine = llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    found = {str(index): Generated(list(prompt)) for index, prompt in enumerate(prompts)}
    decisions: list[ScheduleDecision] = []
    run = engine.runner.run

    def run_and_look(decision: ScheduleDecision) -> list[SampledToken]:
        sampled = run(decision)
        decisions.append(decision)
        for token, row in zip(sampled, engine.runner.logits(len(sampled)), strict=True):
            found[token.request.request_id].logits.append(row.copy())
        return sampled

    engine.runner.run = run_and_look  # type: ignore[method-assign]
    try:
        waiting = list(found)
        step = 0
        while waiting or engine.has_unfinished:
            while waiting and (stagger == 0 or step >= stagger * (len(found) - len(waiting))):
                request_id = waiting.pop(0)
                engine.add_request(request_id, found[request_id].prompt_token_ids, params)
            for output in engine.step():
                found[output.request_id].token_ids = output.outputs[0].token_ids
            step += 1
    finally:
        engine.runner.run = run  # type: ignore[method-assign]
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks
    return list(found.values()), decisions
