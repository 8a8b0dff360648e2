"""Earliest deadline first, and who cannot be in time any more behind those who can."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from aethermind.engine.policies.base import ByOrder, OrderKey, estimated_work_s
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["EarliestDeadline"]


@dataclass(frozen=True, slots=True)
class EarliestDeadline(ByOrder):
    """Orders by deadline; a request without one has it `default_s` after its arrival.

    Under overload plain earliest-deadline serves whoever is about to be late and so makes everybody late. Whose work no
    longer fits before the deadline therefore stands as if that were `lateness_s` later: long enough to let the others
    by, short enough not to starve.
    """

    heeds: ClassVar[frozenset[str]] = frozenset({"deadline_ms"})
    default_s: float = 60.0
    lateness_s: float = 60.0
    seconds_per_prompt_token: float = 1e-4
    seconds_per_new_token: float = 2e-2

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0.0 < value < float("inf"):
                raise InvalidArgumentError(f"{one.name} is {value!r} but must be a finite number of seconds above 0.")

    def order_key(self, request: Request, now: float) -> OrderKey:
        """The earlier deadline first, of those that can be kept."""
        deadline = self._deadline(request)
        work_s = estimated_work_s(request, self.seconds_per_prompt_token, self.seconds_per_new_token)
        is_late = now + work_s > deadline
        return (deadline + self.lateness_s * is_late, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The latest deadline gives way, to be kept or not: an order that changed would undo what was computed."""
        return (self._deadline(request), request.arrival, request.request_id)

    def _deadline(self, request: Request) -> float:
        return request.arrival + self.default_s if request.deadline is None else request.deadline
