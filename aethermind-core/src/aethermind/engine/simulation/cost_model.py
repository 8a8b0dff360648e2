"""How long a step takes: a line through four numbers, stated or measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.errors import ConfigError, InvalidArgumentError

__all__ = ["StepCosts", "read_costs"]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step as a sum of what it contains.

    The defaults stand for a decoder of 7 billion parameters with grouped-query attention in bfloat16 on an accelerator
    with 80 GB: estimated from its data sheet (1.7 TB/s read, 170 TFLOP/s done), not measured.
    """

    fixed_s: float = 9e-3
    """Whatever the step holds: the weights are read once."""
    prefill_token_s: float = 9e-5
    """For each prompt token computed."""
    decode_sequence_s: float = 2e-5
    """For each sequence that gets its next token."""
    context_token_s: float = 4e-8
    """For each cached token that a sequence of the step attends to."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
                raise InvalidArgumentError(f"{one.name} is {value!r} but must be a number of seconds of at least 0.")
        if self.fixed_s + self.decode_sequence_s <= 0 or self.fixed_s + self.prefill_token_s <= 0:
            raise InvalidArgumentError("A step that takes no time has no speed: make fixed_s greater than 0.")

    def step_s(self, decision: ScheduleDecision) -> float:
        """Seconds of one step, before its tokens are counted as computed."""
        num_decodes = decision.num_decodes
        context = sum([entry.request.num_computed_tokens for entry in decision.scheduled])
        return (
            self.fixed_s
            + self.prefill_token_s * (decision.num_batched_tokens - num_decodes)
            + self.decode_sequence_s * num_decodes
            + self.context_token_s * (context + decision.num_batched_tokens)
        )

    def alone_s(self, num_prompt_tokens: int, num_output_tokens: int, chunk: int) -> float:
        """Seconds of a request that has the engine to itself, its prompt in pieces of `chunk` tokens."""
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
    """Costs from a JSON object with the fields of StepCosts; those it leaves out are the defaults."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"Cost model {path} is not JSON: {error}. Pass an object of seconds.") from None
    names = [one.name for one in fields(StepCosts)]
    if not isinstance(values, dict) or not set(values) <= set(names):
        raise ConfigError(f"Cost model {path} should be a JSON object of some of {', '.join(names)}.")
    try:
        return StepCosts(**values)
    except InvalidArgumentError as error:
        raise ConfigError(f"Cost model {path}: {error}") from None
