"""Priority with aging: the urgent go first, and whoever waits grows more urgent, so nobody starves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aethermind.engine.policies.base import ByOrder, OrderKey
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["PriorityWithAging"]


@dataclass(frozen=True, slots=True)
class PriorityWithAging(ByOrder):
    """Orders by `priority`, smaller being more urgent; `aging_s` seconds since arrival gain one level.

    A request's effective priority is `priority - (now - arrival) / aging_s`. As everybody ages at the same
    rate, the order between two requests never changes, and the keys leave `now` out: a request is overtaken only by
    those that arrive within `aging_s` seconds for each level that they are more urgent.

    Requests of `vip_priority` and below are VIPs: once admitted they are never preempted.
    """

    heeds: ClassVar[frozenset[str]] = frozenset({"priority"})
    aging_s: float = 30.0
    vip_priority: int = -10

    def __post_init__(self) -> None:
        if not 0.0 < self.aging_s < float("inf"):
            raise InvalidArgumentError(
                f"aging_s is {self.aging_s!r} but must be a finite number of seconds above 0, such as 30."
            )

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Smaller effective priority first, then earlier arrival."""
        return (request.priority * self.aging_s + request.arrival, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The least urgent gives way, a VIP never."""
        return None if request.priority <= self.vip_priority else self.order_key(request, now)
