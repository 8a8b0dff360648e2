"""What a trace does not say: how urgent its requests are, when they are due, and what if more of them came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.engine.simulation.trace import TraceRequest

__all__ = ["complete"]


def complete(
    trace: Sequence[TraceRequest], *, rate_scale: float, urgent_share: float, slack: float, costs: StepCosts, chunk: int
) -> list[TraceRequest]:
    """The trace with `rate_scale` times as many requests a second, each with a priority and a deadline.

    Where the trace gives no priorities, `urgent_share` of the requests, evenly spread, get -1 and the others 0. A
    request without a deadline is due after `slack` times what it would take alone.
    """
    has_priorities = any(one.priority is not None for one in trace)
    completed = []
    for index, one in enumerate(trace):
        is_urgent = int((index + 1) * urgent_share) > int(index * urgent_share)
        priority = one.priority if has_priorities else -int(is_urgent)
        alone_s = costs.alone_s(max(one.num_prompt_tokens, 1), max(one.num_output_tokens, 1), chunk)
        completed.append(
            replace(
                one,
                arrival_s=one.arrival_s / rate_scale,
                priority=priority,
                deadline_ms=one.deadline_ms or slack * alone_s * 1e3,
            )
        )
    return completed
