"""A two-lane policy: short answers overtake long ones, by at most half a minute of waiting time.

A key is a point in time that does not change while a request waits, so requests that arrive after it are ordered
behind: no request starves.
"""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.engine.policies import OrderKey, Request, fits_now

__all__ = ["TwoLanes"]


@dataclass(frozen=True, slots=True)
class TwoLanes:
    """Orders requests by arrival; those that may generate more than `short` tokens are delayed by `head_start_s`
    seconds.
    """

    short: int = 64
    head_start_s: float = 30.0

    def order_key(self, request: Request, now: float) -> OrderKey:
        """The order key: arrival time, plus the delay of the slow lane."""
        is_long = request.max_total_tokens - request.num_prompt_tokens > self.short
        return (request.arrival + self.head_start_s * is_long, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The preemption key: the request with the largest order key is the victim."""
        return self.order_key(request, now)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Admit a request if all its tokens fit."""
        return fits_now(num_blocks_needed, num_available_blocks)
