"""The time of a step as a linear function of four quantities; the costs are given, or measured on a model."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from aethermind.engine.observation.profiler import sample_prompt
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling.params import SamplingParams

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["StepCosts", "fit_costs", "measure_costs", "read_costs"]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The seconds of a step as a sum over its contents.

    The defaults are for a decoder of 7 billion parameters with grouped-query attention in bfloat16 on an accelerator
    with 80 GB: estimated from its data sheet (1.7 TB/s read, 170 TFLOP/s done), not measured.
    """

    fixed_s: float = 9e-3
    """For each step: the weights are read once."""
    prefill_token_s: float = 9e-5
    """For each prompt token computed."""
    decode_sequence_s: float = 2e-5
    """For each sequence that gets its next token."""
    context_token_s: float = 4e-8
    """For each cached token that a sequence of the step attends to."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
                raise InvalidArgumentError(
                    f"{field.name} is {value!r} but must be a number of seconds of at least 0.", param=field.name
                )
        if self.fixed_s + self.decode_sequence_s <= 0 or self.fixed_s + self.prefill_token_s <= 0:
            raise InvalidArgumentError("A step that takes no time has no speed: make fixed_s greater than 0.")

    def step_s(self, decision: ScheduleDecision) -> float:
        """Return the seconds of a step that has not been recorded yet (`Scheduler.advance`)."""
        num_decodes = decision.num_decodes
        context = sum([entry.request.num_computed_tokens for entry in decision.scheduled])
        return (
            self.fixed_s
            + self.prefill_token_s * (decision.num_batched_tokens - num_decodes)
            + self.decode_sequence_s * num_decodes
            + self.context_token_s * (context + decision.num_batched_tokens)
        )

    def alone_s(self, num_prompt_tokens: int, num_output_tokens: int, chunk: int) -> float:
        """Return the seconds of a request that runs alone, with its prompt in chunks of `chunk` tokens."""
        num_chunks = -(-num_prompt_tokens // chunk)
        num_decodes = num_output_tokens - 1
        context = num_chunks * num_prompt_tokens // 2 + num_prompt_tokens // 2
        context += num_decodes * num_prompt_tokens + num_decodes * num_output_tokens // 2
        return (
            self.fixed_s * (num_chunks + num_decodes)
            + self.prefill_token_s * num_prompt_tokens
            + self.decode_sequence_s * num_decodes
            + self.context_token_s * context
        )


def read_costs(path: Path) -> StepCosts:
    """Read costs from a JSON object with the fields of StepCosts; missing fields have their defaults."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"Cost model {path} is not JSON: {error}. Pass an object of seconds.") from None
    names = [field.name for field in fields(StepCosts)]
    if not isinstance(values, dict) or not set(values) <= set(names):
        raise ConfigError(f"Cost model {path} should be a JSON object of some of {', '.join(names)}.")
    try:
        return StepCosts(**values)
    except InvalidArgumentError as error:
        raise ConfigError(f"Cost model {path}: {error}") from None


_NUM_REPEATS = 5


def measure_costs(engine: Engine) -> StepCosts:
    """Time prefill and decode steps of an idle engine whose prefix cache is off, and fit them.

    Prompts fill a quarter, a half and the whole of a step; decodes run for 1, 4 and 16 sequences at short and long
    contexts, within the engine's limits.
    """
    max_context = min(engine.budget.max_num_batched_tokens, engine.compiled.max_model_len - _NUM_REPEATS - 2)
    rows = [
        _prefill(engine, num_tokens) for num_tokens in sorted({max(max_context // part, 1) for part in (4, 2, 1)}) * 3
    ]
    for num_sequences in (1, 4, 16):
        if num_sequences <= engine.budget.max_num_seqs:
            rows += [_decode(engine, num_sequences, context) for context in (max(max_context // 16, 1), max_context)]
    return fit_costs(rows)


def fit_costs(rows: list[tuple[float, float, float, float]]) -> StepCosts:
    """Fit non-negative costs to measured steps: (prefill tokens, decodes, context tokens, seconds) each.

    The fit minimises the squares of relative errors.
    """
    import numpy as np

    table = np.array([(1.0, *row[:3]) for row in rows]) / np.array([row[3] for row in rows])[:, None]
    kept = list(range(table.shape[1]))
    while True:
        costs = np.linalg.lstsq(table[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (costs >= 0).all():
            break
        del kept[int(costs.argmin())]  # a quantity with a negative cost is dropped
    values = dict(zip(kept, costs.tolist(), strict=True))
    return StepCosts(*(values.get(column, 0.0) for column in range(len(fields(StepCosts)))))


def _prefill(engine: Engine, num_tokens: int) -> tuple[float, float, float, float]:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    engine.add_request("prefill", _prompt(engine, num_tokens, 0), params)
    return num_tokens, 0.0, num_tokens, _timed_step(engine)


def _decode(engine: Engine, num_sequences: int, context: int) -> tuple[float, float, float, float]:
    params = SamplingParams(temperature=0.0, max_tokens=_NUM_REPEATS + 1, ignore_eos=True)
    fitting = max(1, min(context, engine.cache.pool.num_blocks * engine.cache.spec.block_size // num_sequences - 8))
    for index in range(num_sequences):
        engine.add_request(f"decode {index}", _prompt(engine, fitting, index), params)
    while engine.waiting or any(request.is_prefilling for request in engine.running):
        engine.advance()
    lengths = [request.num_tokens for request in engine.running]
    seconds = []
    while engine.has_unfinished:
        seconds.append(_timed_step(engine))
    return 0.0, len(lengths), sum(lengths), median(seconds)


def _prompt(engine: Engine, num_tokens: int, index: int) -> list[int]:
    vocab_size = engine.compiled.model.config.vocab_size
    return sample_prompt(num_tokens, vocab_size, index)


def _timed_step(engine: Engine) -> float:
    started = time.perf_counter()
    engine.advance()
    return time.perf_counter() - started
