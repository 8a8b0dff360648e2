"""Earliest deadline first, and those that are late already behind those that can still be in time."""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.engine.policies.base import OrderKey, fits_now
from aethermind.engine.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["EarliestDeadline"]


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Orders by deadline; a request without one has it `default_s` after its arrival.

    Under overload plain earliest-deadline serves whoever is about to be late and so makes everybody late. Who has
    missed the deadline while waiting therefore stands as if it were `lateness_s` later: long enough to let the others
    by, short enough not to starve.
    """

    default_s: float = 60.0
    lateness_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("default_s", "lateness_s"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InvalidArgumentError(
                    f"{name} is {getattr(self, name)!r} but must be a finite number of seconds above 0."
                )

    def order_key(self, request: Request, now: float) -> OrderKey:
        """The earlier deadline first, of those that have not passed."""
        deadline = self._deadline(request)
        return (deadline + self.lateness_s * (now > deadline), request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The latest deadline gives way, passed or not: an order that changed would undo what was computed."""
        return (self._deadline(request), request.arrival, request.request_id)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Only if all its tokens fit now."""
        return fits_now(num_blocks_needed, num_available_blocks)

    def _deadline(self, request: Request) -> float:
        return request.arrival + self.default_s if request.deadline is None else request.deadline
