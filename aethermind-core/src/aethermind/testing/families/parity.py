"""Parity of a small model on a device with its reference: logits within a tolerance, and the greedy tokens.

A `Bench` opens one case on one device. `Checkpoints` writes the checkpoints of cases and computes the outputs of their
references, each once. `generate` returns the tokens and logits of an engine, which `assert_matches` compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.errors import InvalidArgumentError
from aethermind.llm import LLM, SamplingParams
from aethermind.runtime import Runtime
from aethermind.testing.families.case import ModelCase, Outputs, Reference

__all__ = [
    "Bench",
    "Checkpoints",
    "Generated",
    "assert_close_to",
    "assert_matches",
    "generate",
    "random_prompts",
    "reference_of",
]

MAX_TIE = 1e-3
"""If the reference's two largest logits are closer than this, either token is correct."""

TOLERANCE = 1e-5
"""The tolerance in float32, as a fraction of the largest logit of a row; the reference computes in float64."""


class Checkpoints:
    """Checkpoints of cases, and the outputs of their references. Each is created once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        """`make_folder(name)` makes a new folder, as pytest's `tmp_path_factory.mktemp` does."""
        self._make_folder = make_folder
        self._directories: dict[int, tuple[ModelCase, Path]] = {}
        self._outputs: dict[int, Outputs] = {}
        self._tolerances: dict[int, float] = {}

    def directory(self, case: ModelCase) -> Path:
        """Return the checkpoint of a case, with a tokenizer whose tokens are numbers."""
        if id(case) not in self._directories:
            directory = self._make_folder(case.name)
            reference_of(case).write(case, directory)
            write_numeric_tokenizer(directory)
            self._directories[id(case)] = case, directory
        return self._directories[id(case)][1]

    def outputs(self, case: ModelCase) -> Outputs:
        """Return the outputs of the reference for the checkpoint of a case."""
        if id(case) not in self._outputs:
            self._outputs[id(case)] = reference_of(case).outputs(case, self.directory(case))
        return self._outputs[id(case)]

    def tolerance(self, case: ModelCase) -> float:
        """Return the allowed error of logits in float32, as a fraction of the largest logit of a row.

        With `allows_twice_reference_error` it is at least twice the float32 error of the reference on a random text.
        """
        in_float32 = getattr(reference_of(case), "float32_outputs", None) if case.allows_twice_reference_error else None
        if in_float32 is None:
            return TOLERANCE
        if id(case) not in self._tolerances:
            (text,) = random_prompts(40, vocab_size=case.vocab_size)
            exact = self.outputs(case)(text)
            error = abs(in_float32(case, self.directory(case))(text) - exact).max(axis=1) / abs(exact).max(axis=1)
            self._tolerances[id(case)] = max(TOLERANCE, 2 * float(error.max()))
        return self._tolerances[id(case)]


@dataclass(frozen=True)
class Bench:
    """One case on one device."""

    case: ModelCase
    runtime: Runtime
    device: str
    checkpoints: Checkpoints

    @cached_property
    def directory(self) -> Path:
        """The directory of the checkpoint."""
        return self.checkpoints.directory(self.case)

    @cached_property
    def outputs(self) -> Outputs:
        """The outputs of the reference."""
        return self.checkpoints.outputs(self.case)

    @property
    def tolerance(self) -> float:
        """The allowed error of logits in float32, as a fraction of the largest logit of a row."""
        return self.checkpoints.tolerance(self.case)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.case.vocab_size

    def open(self, **options: Any) -> LLM:
        """Open the model on the device, by default in float32 and with one thread, because the model is small."""
        defaults = {"dtype": "float32", "max_model_len": self.case.max_model_len, "fallback": "allow", "num_threads": 1}
        return LLM(self.directory, device=self.device, runtime=self.runtime, **{**defaults, **options})


def reference_of(case: ModelCase) -> Reference:
    """Return the reference of a case, by default transformers; InvalidArgumentError where that lacks the family."""
    if case.reference is not None:
        return case.reference
    try:
        import transformers

        from aethermind.testing.families.transformers_reference import TransformersReference
    except ImportError as error:
        raise InvalidArgumentError(
            f"{case.architecture} is compared with transformers, which cannot be imported here ({error}): "
            "pip install transformers torch, or give its cases a reference of their own."
        ) from None
    if not hasattr(transformers, case.architecture):
        raise InvalidArgumentError(
            f"Transformers {transformers.__version__} has no {case.architecture}. Give the family's cases a reference "
            "of their own (`aethermind.testing.families.NumpyReference`), or install a newer transformers."
        )
    return TransformersReference()


def write_numeric_tokenizer(directory: Path) -> None:
    """Write a tokenizer whose words are the numbers from 0 to 255. It has no end-of-sequence token."""
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {str(number): number for number in range(256)}, "unk_token": "0"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text("{}")


@dataclass
class Generated:
    """One request: its prompt, the generated tokens, and the logits of each, float32 [V]."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logits: list[np.ndarray[Any, Any]] = field(default_factory=list)

    @property
    def all_token_ids(self) -> list[int]:
        """Prompt and generated tokens."""
        return [*self.prompt_token_ids, *self.token_ids]


def generate(
    llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, stagger: int = 0
) -> tuple[list[Generated], list[ScheduleDecision]]:
    """Generate greedily for all prompts in one engine; a prompt is added every `stagger` steps (0: all at once).

    Returns the requests and the schedule decision of every step.
    """
    engine = llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests = {str(index): Generated(list(prompt)) for index, prompt in enumerate(prompts)}
    decisions: list[ScheduleDecision] = []
    run = engine.runner.run

    def run_and_record(decision: ScheduleDecision) -> list[SampledToken]:
        sampled = run(decision)
        decisions.append(decision)
        for token, row in zip(sampled, engine.runner.logits(len(sampled)), strict=True):
            requests[token.request.request_id].logits.append(row.copy())
        return sampled

    engine.runner.run = run_and_record  # type: ignore[method-assign]
    try:
        waiting = list(requests)
        step = 0
        while waiting or engine.has_unfinished:
            while waiting and (stagger == 0 or step >= stagger * (len(requests) - len(waiting))):
                request_id = waiting.pop(0)
                engine.add_request(request_id, requests[request_id].prompt_token_ids, params)
            for output in engine.step():
                requests[output.request_id].token_ids = output.outputs[0].token_ids
            step += 1
    finally:
        engine.runner.run = run  # type: ignore[method-assign]
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks
    return list(requests.values()), decisions


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
    """Assert that every row equals the reference's within `tolerance` times its largest magnitude.

    A fraction of `max_outliers` of the rows may have larger errors.
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
    has_winner = first - second > MAX_TIE
    tokens = np.array(generated.token_ids)
    assert (reference.argmax(axis=1) == tokens)[has_winner].all(), "a token is not the one with the largest logit"
    assert has_winner.mean() > 0.9, "nearly all tokens are ties, which proves nothing; choose another configuration"
