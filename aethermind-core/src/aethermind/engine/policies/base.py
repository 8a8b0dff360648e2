"""The interface of a scheduling policy: its methods, and the properties that they must have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from aethermind.engine.requests.request import Request
from aethermind.plugins.compatibility import deprecated

__all__ = [
    "OrderKey",
    "OrderedPolicy",
    "SchedulingPolicy",
    "SharingPolicy",
    "estimated_work_s",
    "fits_now",
    "ignored_options",
    "sharing_policy",
]

_SCHEDULING_FIELDS = ("priority", "deadline_ms")

OrderKey: TypeAlias = tuple[float, float, str]
"""A sort key, compared as a tuple. It ends with the request id, so the keys of two requests are never equal."""


class SchedulingPolicy(Protocol):
    """Orders requests for admission and preemption. `now` is in seconds of the engine's clock.

    Two properties are required. A request's order key may grow while it waits, but must never shrink, because the queue
    computes only the key of its first request again. Only finitely many requests may ever precede a given one, so that
    none starves: in the policies of this package a key is a point in time, and requests that arrive much later follow.

    A policy may have an attribute `used_options`, a frozenset: which of a request's `priority` and `deadline_ms` it
    uses. A server then refuses options without effect. Without the attribute both count as used. Its name was `heeds`
    before, which still works.

    A policy may have a method `reserved_share(request)`: the fraction of the engine's sequences and blocks, from 0 to
    less than 1, that this request has to leave to requests for which the method returns 0.
    """

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Return the sort key of a waiting request; requests are admitted in ascending order."""
        ...

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """Return the sort key of preemption; None exempts a request.

        When blocks run out, the running request with the greatest key is preempted.

        The order of two requests must not depend on `now`. A request without a key is admitted only if the cache has
        enough blocks for it and for all running requests without a key, at their maximum lengths.
        """
        ...

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Return whether the first waiting request may start, with these blocks needed and available."""
        ...


@runtime_checkable
class SharingPolicy(SchedulingPolicy, Protocol):
    """A policy that shares the engine between tenants.

    Prompts are computed in the policy's order, those of new and of running requests alike, and a new request may
    preempt a running one.
    """

    def virtual_arrival(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        """Return `Request.virtual_arrival` of a request that arrives when these wait and run.

        Its name was `place` before, which still works (see `sharing_policy`).
        """
        ...

    def choose_victim(
        self, request: Request, running: Sequence[Request], preemptible: Iterable[Request]
    ) -> Request | None:
        """Return the request of `preemptible`, some of `running`, to preempt for the first waiting one; None for none.

        Its name was `giver` before, which still works (see `sharing_policy`).
        """
        ...


def sharing_policy(policy: SchedulingPolicy) -> SharingPolicy | None:
    """Return `policy` as a `SharingPolicy`, or None if it does not share.

    A policy whose methods have their former names is adapted: `place` for `virtual_arrival`, `giver` for
    `choose_victim`.
    """
    if isinstance(policy, SharingPolicy):
        return policy
    virtual_arrival = _renamed_method(policy, "virtual_arrival", "place", until="0.4")
    choose_victim = _renamed_method(policy, "choose_victim", "giver", until="0.3")
    if virtual_arrival is None or choose_victim is None:
        return None
    return _RenamedMethods(policy, virtual_arrival, choose_victim)


def _renamed_method(policy: SchedulingPolicy, name: str, former: str, *, until: str) -> Callable[..., Any] | None:
    """Return a method of a policy, found by its name or, with a warning, by its former name; None without either."""
    method = getattr(policy, name, None)
    if method is None and callable(method := getattr(policy, former, None)):
        deprecated(f"the method `{former}` of a scheduling policy", instead=f"`{name}`", until=until, stacklevel=4)
    return method if callable(method) else None


class _RenamedMethods:
    """A `SharingPolicy` made of a policy that has deprecated names of methods."""

    def __init__(
        self, policy: SchedulingPolicy, virtual_arrival: Callable[..., float], choose_victim: Callable[..., Any]
    ) -> None:
        self.virtual_arrival = virtual_arrival
        self.choose_victim = choose_victim
        self.order_key = policy.order_key
        self.victim_key = policy.victim_key
        self.admit = policy.admit


class OrderedPolicy(ABC):
    """The base of this package's policies. Requests are preempted in the reverse order of admission, and a request is
    admitted only if all its tokens fit.
    """

    __slots__ = ()

    @abstractmethod
    def order_key(self, request: Request, now: float) -> OrderKey:
        """Return the sort key of a waiting request; requests are admitted in ascending order."""

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The request that is last in admission order is preempted first."""
        return self.order_key(request, now)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Admit a request only if all its tokens fit now."""
        return fits_now(num_blocks_needed, num_available_blocks)


def ignored_options(policy: SchedulingPolicy) -> tuple[str, ...]:
    """Return the fields of `RequestOptions` that have no effect under a policy, according to its `used_options`."""
    used_options = getattr(policy, "used_options", None)
    if used_options is None:
        used_options = getattr(policy, "heeds", None)
        if used_options is None:
            return ()
        deprecated("the attribute `heeds` of a scheduling policy", instead="`used_options`", until="0.3")
    return tuple(name for name in _SCHEDULING_FIELDS if name not in used_options)


def fits_now(num_blocks_needed: int, num_available_blocks: int) -> bool:
    """Whether enough blocks are free now for all tokens of a request; otherwise it is likely to be preempted soon."""
    return num_blocks_needed <= num_available_blocks


def estimated_work_s(request: Request, seconds_per_prompt_token: float, seconds_per_new_token: float) -> float:
    """Estimate the seconds that a request takes when no other runs, with the longest output that it allows.

    The estimate is exact if the output has `max_tokens` tokens, else an upper bound.
    """
    num_new_tokens = request.max_total_tokens - request.num_prompt_tokens
    return request.num_prompt_tokens * seconds_per_prompt_token + num_new_tokens * seconds_per_new_token
