"""What a scheduling policy decides, and the one promise it must keep."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from aethermind.engine.request import Request

__all__ = ["OrderKey", "SchedulingPolicy"]

OrderKey: TypeAlias = tuple[float, float, str]
"""Compared like any tuple; ends with the request id, so that no two requests are equal."""


class SchedulingPolicy(Protocol):
    """Small, stateless judgements over requests. `now` is in seconds of the engine's clock.

    The promise: among requests that have arrived, one stays first in the victim order until it finishes. It
    can take room from all others and nobody from it, which is why a full cache slows requests down and never
    locks them.
    """

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Waiting requests are admitted by ascending key."""
        ...

    def victim_key(self, request: Request, now: float) -> OrderKey:
        """Where room is short, the running request with the greatest key gives way to the others."""
        ...

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Whether the first waiting request may start next to the running ones, whose room it could take."""
        ...
