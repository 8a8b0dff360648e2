"""Logits and tokens of an engine, compared with a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.llm import LLM, SamplingParams
from aethermind.testing.families.case import Outputs

__all__ = ["Generated", "assert_close_to", "assert_matches", "generate", "random_prompts"]


@dataclass
class Generated:
    """One request: its prompt, the generated tokens, and the logits of each, float32 [V]."""

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
    """Generate greedily for all prompts in one engine; a prompt is added every `stagger` steps (0: all at once).

    Returns the requests and the schedule decision of every step.
    """
    engine = llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    found = {str(index): Generated(list(prompt)) for index, prompt in enumerate(prompts)}
    decisions: list[ScheduleDecision] = []
    run = engine.runner.run

    def run_and_record(decision: ScheduleDecision) -> list[SampledToken]:
        sampled = run(decision)
        decisions.append(decision)
        for token, row in zip(sampled, engine.runner.logits(len(sampled)), strict=True):
            found[token.request.request_id].logits.append(row.copy())
        return sampled

    engine.runner.run = run_and_record  # type: ignore[method-assign]
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


TIE = 1e-3
"""If the reference's two largest logits are closer than this, either token is correct."""

TOLERANCE = 1e-5
"""The tolerance in float32, as a fraction of the largest logit of a row; the reference computes in float64."""


def random_prompts(*lengths: int, vocab_size: int = 131) -> list[list[int]]:
    """Return random token ids, which depend on the lengths only."""
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def assert_close_to(
    reference: np.ndarray[Any, Any],
    rows: Sequence[np.ndarray[Any, Any]],
    tolerance: float = TOLERANCE,
    max_outliers: float = 0.0,
) -> None:
    """Assert that every row is the reference's, within `tolerance` · its largest magnitude.

    A fraction of `max_outliers` of the rows may be farther off.
    """
    assert len(rows) == len(reference), f"{len(rows)} rows of logits were computed, not {len(reference)}"
    error = np.abs(np.stack(rows) - reference).max(axis=1)
    allowed = tolerance * np.abs(reference).max(axis=1)
    worst = int(np.argmax(error / allowed))
    assert (error > allowed).mean() <= max_outliers, (
        f"row {worst} of {len(rows)} is off by {error[worst] / allowed[worst] * tolerance:.2e} of its largest value; "
        f"{tolerance:g} is allowed"
    )


def assert_matches(generated: Generated, outputs: Outputs, tolerance: float = TOLERANCE) -> None:
    """Assert that logits are the reference's for the same tokens, and tokens those of its largest logits (or ties)."""
    reference = outputs(generated.all_token_ids[:-1])[len(generated.prompt_token_ids) - 1 :]
    assert_close_to(reference, generated.logits, tolerance)
    second, first = np.sort(reference, axis=1)[:, -2:].T
    has_winner = first - second > TIE
    tokens = np.array(generated.token_ids)
    assert (reference.argmax(axis=1) == tokens)[has_winner].all(), "a token is not the one with the largest logit"
    assert has_winner.mean() > 0.9, "nearly all tokens are ties, which proves nothing; choose another configuration"
