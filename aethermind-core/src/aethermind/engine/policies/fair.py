"""Fair shares: whose tenant has little under way goes before those whose tenant has much, whoever came first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from aethermind.engine.policies.base import ByOrder, OrderKey
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["FairShare"]


@dataclass(frozen=True, slots=True)
class FairShare(ByOrder):
    """Orders by a place in time: arrival, and `spacing_s` for each request that the tenant had open when this came.

    So one that comes to a tenant's first request stands before the many of another, and nobody waits for ever: who
    comes later by more than a place was moved stands behind it. Within a tenant it is first come, first served.

    A request without a tenant stands where it came: nobody's crowd is behind it, and none is looked for.

    It also shares steps: prompts are computed in this order, and where all seats or blocks are taken, a tenant that
    runs more than one request more than another gives one up to a request before it.
    """

    heeds: ClassVar[frozenset[str]] = frozenset()
    spacing_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 < self.spacing_s < float("inf"):
            raise InvalidArgumentError(f"spacing_s is {self.spacing_s!r} but must be a finite number above 0.")

    def place(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        """Where in time a request stands that comes to these, in seconds of the engine's clock."""
        if not request.tenant:
            return request.arrival
        ahead = [other.place for other in waiting if other.tenant == request.tenant]
        num_open = len(ahead) + sum(other.tenant == request.tenant for other in running)
        return max(chain(ahead, [request.arrival + self.spacing_s * num_open]))

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Earlier places first, then earlier arrivals."""
        return (request.place, request.arrival, request.request_id)

    def giver(self, request: Request, running: Sequence[Request], movable: Iterable[Request]) -> Request | None:
        """Who of `movable`, standing behind a request that waits, gives way: the last of the tenant that runs most."""
        counts = Counter(other.tenant for other in running)
        fair, own = counts[request.tenant] + 1, self.order_key(request, 0.0)
        return max(
            (other for other in movable if counts[other.tenant] > fair and self.order_key(other, 0.0) > own),
            key=lambda other: (counts[other.tenant], self.order_key(other, 0.0)),
            default=None,
        )
