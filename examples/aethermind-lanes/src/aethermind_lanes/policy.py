"""Two lanes: short answers drive past long ones, which wait half a minute at most for it.

A key is an instant of the clock, so it never shrinks while a request waits, and who arrives after it stands behind it:
nobody starves.
"""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.engine.policies import OrderKey, Request, fits_now

__all__ = ["TwoLanes"]


@dataclass(frozen=True, slots=True)
class TwoLanes:
    """Who may write more than `short` tokens stands `head_start_s` seconds behind those that came at the same time."""

    short: int = 64
    head_start_s: float = 30.0

    def order_key(self, request: Request, now: float) -> OrderKey:
        """By arrival, in the request's lane."""
        is_long = request.max_total_tokens - request.num_prompt_tokens > self.short
        return (request.arrival + self.head_start_s * is_long, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """Where room is short, the latest of the slow lane gives way."""
        return self.order_key(request, now)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Where all its tokens fit."""
        return fits_now(num_blocks_needed, num_available_blocks)
