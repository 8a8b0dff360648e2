"""Policies that sort requests by a key, admit from the front and preempt from the back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import ClassVar

from aethermind.engine.policies.base import OrderedPolicy, OrderKey, estimated_work_s
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError
from aethermind.plugins.compatibility import deprecated_fields

__all__ = [
    "EarliestDeadline",
    "FairShare",
    "FirstComeFirstServed",
    "PriorityWithAging",
    "ShortestFirst",
    "WeightedOrder",
]


class FirstComeFirstServed(OrderedPolicy):
    """First come, first served: orders by arrival; ties are broken by request id."""

    __slots__ = ()
    used_options: ClassVar[frozenset[str]] = frozenset()

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Earlier arrivals first."""
        return (request.arrival, 0.0, request.request_id)


@dataclass(frozen=True, slots=True)
class PriorityWithAging(OrderedPolicy):
    """Priority with aging: orders by `priority`, smaller first; `aging_s` seconds of waiting count as one level.

    A request's effective priority is `priority - (now - arrival) / aging_s`. All requests age at the same rate, so the
    order of two requests never changes and keys do not depend on `now`: a request is overtaken only by requests that
    arrive within `aging_s` seconds for each level that they are more urgent. So none starves.

    Requests with a priority of `vip_priority` or below are never preempted once they run. `vip_share` of the sequences
    and blocks of the engine is reserved for them: other requests are admitted only to the rest.
    """

    used_options: ClassVar[frozenset[str]] = frozenset({"priority"})
    aging_s: float = 30.0
    vip_priority: int = -10
    vip_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.vip_share < 1.0:
            raise InvalidArgumentError(
                f"vip_share is {self.vip_share!r} but must be a number from 0 to less than 1, such as 0.25.",
                param="vip_share",
            )
        if not 0.0 < self.aging_s < float("inf"):
            raise InvalidArgumentError(
                f"aging_s is {self.aging_s!r} but must be a finite number of seconds above 0, such as 30.",
                param="aging_s",
            )

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Order by effective priority, then by arrival."""
        return (request.priority * self.aging_s + request.arrival, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The least urgent request is preempted first; those at or below `vip_priority` never are."""
        return None if request.priority <= self.vip_priority else self.order_key(request, now)

    def reserved_share(self, request: Request) -> float:
        """The share that is reserved for requests at or below `vip_priority`."""
        return 0.0 if request.priority <= self.vip_priority else self.vip_share


@deprecated_fields(until="0.4", patience="size_weight")
@dataclass(frozen=True, slots=True)
class ShortestFirst(OrderedPolicy):
    """Shortest first: orders by arrival plus `size_weight` times the estimated seconds of work.

    The estimate is for the prompt and the longest output allowed, see `estimated_work_s`. Plain shortest-first starves
    long requests while short ones keep arriving; here a request of *w* seconds is overtaken only by requests that
    arrive within *size_weight · w* seconds. `patience` is the deprecated name of `size_weight`.
    """

    used_options: ClassVar[frozenset[str]] = frozenset()
    seconds_per_prompt_token: float = 1e-4
    seconds_per_new_token: float = 2e-2
    size_weight: float = 20.0

    def __post_init__(self) -> None:
        for name in ("seconds_per_prompt_token", "seconds_per_new_token", "size_weight"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InvalidArgumentError(
                    f"{name} is {getattr(self, name)!r} but must be a finite number above 0.", param=name
                )

    def work_s(self, request: Request) -> float:
        """Estimate the seconds that the request takes alone."""
        return estimated_work_s(request, self.seconds_per_prompt_token, self.seconds_per_new_token)

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Order by arrival plus weighted size, then by arrival."""
        return (request.arrival + self.size_weight * self.work_s(request), request.arrival, request.request_id)


@dataclass(frozen=True, slots=True)
class EarliestDeadline(OrderedPolicy):
    """Earliest deadline first; a request without a deadline gets one `default_s` seconds after arrival.

    Under overload, plain earliest-deadline-first serves the requests that are about to miss their deadlines, so that
    all miss them. A request whose work no longer fits before its deadline is therefore ordered as if the deadline were
    `lateness_s` later: long enough for others to overtake it, short enough that it does not starve.
    """

    used_options: ClassVar[frozenset[str]] = frozenset({"deadline_ms"})
    default_s: float = 60.0
    lateness_s: float = 60.0
    seconds_per_prompt_token: float = 1e-4
    seconds_per_new_token: float = 2e-2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0.0 < value < float("inf"):
                raise InvalidArgumentError(
                    f"{field.name} is {value!r} but must be a finite number of seconds above 0.", param=field.name
                )

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Order by deadline; requests that can no longer meet theirs come `lateness_s` later."""
        deadline = self._deadline(request)
        work_s = estimated_work_s(request, self.seconds_per_prompt_token, self.seconds_per_new_token)
        is_late = now + work_s > deadline
        return (deadline + self.lateness_s * is_late, request.arrival, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The latest deadline is preempted first, met or not: an order that changed would waste computed tokens."""
        return (self._deadline(request), request.arrival, request.request_id)

    def _deadline(self, request: Request) -> float:
        return request.arrival + self.default_s if request.deadline is None else request.deadline


@dataclass(frozen=True, slots=True)
class WeightedOrder(OrderedPolicy):
    """Orders by a weighted sum of arrival, priority, size and deadline; the smallest sum comes first.

    The sum is `waiting_weight` times the arrival, plus `priority_weight` seconds for each level of `priority`, plus
    `size_weight` times the estimated seconds of work, plus `deadline_weight` times the deadline; a request without a
    deadline has one `default_s` seconds after its arrival. All terms are in seconds. Waiting counts because the sums of
    later requests are larger: `waiting_weight` has to be above 0, so that no request starves.
    """

    waiting_weight: float = 1.0
    priority_weight: float = 30.0
    size_weight: float = 1.0
    deadline_weight: float = 0.0
    default_s: float = 60.0
    seconds_per_prompt_token: float = 1e-4
    seconds_per_new_token: float = 2e-2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name in ("priority_weight", "size_weight", "deadline_weight")
            if not 0.0 <= value < float("inf") or (value == 0.0 and not may_be_zero):
                bound = "of 0 or more" if may_be_zero else "above 0"
                raise InvalidArgumentError(
                    f"{field.name} is {value!r} but must be a finite number {bound}.", param=field.name
                )

    @property
    def used_options(self) -> frozenset[str]:
        """The options of requests whose weight is not 0."""
        weights = {"priority": self.priority_weight, "deadline_ms": self.deadline_weight}
        return frozenset(name for name, weight in weights.items() if weight)

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Order by the weighted sum, then by arrival."""
        deadline = request.arrival + self.default_s if request.deadline is None else request.deadline
        weighted = (
            self.waiting_weight * request.arrival
            + self.priority_weight * request.priority
            + self.size_weight * estimated_work_s(request, self.seconds_per_prompt_token, self.seconds_per_new_token)
            + self.deadline_weight * deadline
        )
        return (weighted, request.arrival, request.request_id)


@dataclass(frozen=True, slots=True)
class FairShare(OrderedPolicy):
    """Orders by a virtual arrival time: arrival plus `spacing_s` for each request that the tenant had open then.

    So the first request of one tenant precedes the queued requests of another. None starves: a request that arrives
    later by more than this offset follows. Within a tenant the order is first come, first served. A request without a
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
        """Return the virtual arrival time of a request that arrives now, in seconds of the engine's clock."""
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
