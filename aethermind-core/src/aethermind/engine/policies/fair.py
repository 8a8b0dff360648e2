"""Fair sharing between tenants: requests of tenants with few open requests precede those of tenants with many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from aethermind.engine.policies.base import OrderedPolicy, OrderKey
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["FairShare"]


@dataclass(frozen=True, slots=True)
class FairShare(OrderedPolicy):
    """Orders by a virtual arrival time: arrival plus `spacing_s` for each request that the tenant had open then.

    So the first request of one tenant precedes the queued requests of another, and none starves: a request that arrives
    later by more than the offset follows. Within a tenant the order is first come, first served. A request without a
    tenant has no offset.

    Steps are shared as well: prompts are computed in this order, and if all sequences or blocks are taken, a tenant
    with at least two running requests more than another has one of them preempted for a request that precedes it.
    """

    used_options: ClassVar[frozenset[str]] = frozenset()
    spacing_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 < self.spacing_s < float("inf"):
            raise InvalidArgumentError(
                f"spacing_s is {self.spacing_s!r} but must be a finite number above 0.", param="spacing_s"
            )

    def virtual_arrival(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        """Return a request's virtual arrival time, in seconds of the engine's clock, if it arrives when these wait and
        run.
        """
        if not request.tenant:
            return request.arrival
        tenants_waiting = [other.virtual_arrival for other in waiting if other.tenant == request.tenant]
        num_open = len(tenants_waiting) + sum(other.tenant == request.tenant for other in running)
        return max(chain(tenants_waiting, [request.arrival + self.spacing_s * num_open]))

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Order by virtual arrival, then by arrival."""
        return (request.virtual_arrival, request.arrival, request.request_id)

    def choose_victim(
        self, request: Request, running: Sequence[Request], preemptible: Iterable[Request]
    ) -> Request | None:
        """Return the last request of the busiest tenant, among those of `preemptible` that follow the waiting one."""
        counts = Counter(other.tenant for other in running)
        fair_count, waiting_key = counts[request.tenant] + 1, self.order_key(request, 0.0)
        return max(
            (
                other
                for other in preemptible
                if counts[other.tenant] > fair_count and self.order_key(other, 0.0) > waiting_key
            ),
            key=lambda other: (counts[other.tenant], self.order_key(other, 0.0)),
            default=None,
        )
