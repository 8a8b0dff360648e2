"""Shortest first: little work overtakes much, by as much time as the difference in work is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aethermind.engine.policies.base import ByOrder, OrderKey, estimated_work_s
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["ShortestFirst"]


@dataclass(frozen=True, slots=True)
class ShortestFirst(ByOrder):
    """Orders by arrival plus `patience` times the estimated seconds of work.

    Work is what the prompt and the longest answer allowed take, see `estimated_work_s`. Pure shortest-first starves the
    long while short ones keep coming; here a request that takes `w` seconds is overtaken only by those that arrive
    within `patience * w`.
    """

    heeds: ClassVar[frozenset[str]] = frozenset()
    seconds_per_prompt_token: float = 1e-4
    seconds_per_new_token: float = 2e-2
    patience: float = 20.0

    def __post_init__(self) -> None:
        for name in ("seconds_per_prompt_token", "seconds_per_new_token", "patience"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InvalidArgumentError(f"{name} is {getattr(self, name)!r} but must be a finite number above 0.")

    def work_s(self, request: Request) -> float:
        """Seconds of work of the whole request, alone."""
        return estimated_work_s(request, self.seconds_per_prompt_token, self.seconds_per_new_token)

    def order_key(self, request: Request, now: float) -> OrderKey:
        """The shorter and the earlier first."""
        return (request.arrival + self.patience * self.work_s(request), request.arrival, request.request_id)
