"""A step in the making: the queues that it is made from, its limits, and what was decided so far."""

from __future__ import annotations

from typing import NamedTuple

from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
from aethermind.engine.scheduling.waiting_queue import WaitingQueue

__all__ = ["SchedulingStep"]


class SchedulingStep(NamedTuple):
    """What the slower ways through a step share."""

    now: float
    waiting: WaitingQueue
    running: list[Request]
    budget: StepBudget
    decision: ScheduleDecision

    def chunk(self, remaining: int) -> int:
        """How many of a prompt's `remaining` tokens the step can still take."""
        room = self.budget.max_num_batched_tokens - self.decision.num_batched_tokens
        return min(remaining, room, self.budget.max_prefill_chunk or remaining)
