"""What a scheduling policy decides, and the promises it must keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from aethermind.engine.requests.request import Request

__all__ = [
    "ByOrder",
    "OrderKey",
    "SchedulingPolicy",
    "SharingPolicy",
    "estimated_work_s",
    "fits_now",
    "ignored_options",
]

_WISHES = ("priority", "deadline_ms")

OrderKey: TypeAlias = tuple[float, float, str]
"""Compared like any tuple; ends with the request id, so that no two requests are equal."""


class SchedulingPolicy(Protocol):
    """Small judgements over requests. `now` is in seconds of the engine's clock.

    Two promises. A request's order key may grow while it waits, never shrink: the queue looks again only at who comes
    to the front. And only finitely many others can ever come before a request, which is why nobody starves: in the
    policies here a key is an instant of the clock, and who arrives after it stands behind it.

    A policy may say in `heeds`, a frozenset, which of a request's `priority` and `deadline_ms` it looks at: a server
    then refuses those that would change nothing. One that does not say is taken to look at both.
    """

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Waiting requests are admitted by ascending key."""
        ...

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """Where room is short, the running request with the greatest key gives way; None is never asked to.

        Between two requests the order is the same whenever it is asked for. A request without a key is let in only
        next to others of its kind that leave it all the room it may ever need.
        """
        ...

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Whether the first waiting request may start next to the running ones, whose room it could take."""
        ...


@runtime_checkable
class SharingPolicy(SchedulingPolicy, Protocol):
    """A policy that knows tenants. Under it prompts are computed in the policy's order, newcomers among those that
    run, and a newcomer may take another's seat.
    """

    def place(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        """`Request.place` of one that comes to these."""
        ...

    def giver(self, request: Request, running: Sequence[Request], movable: Iterable[Request]) -> Request | None:
        """Who of `movable`, some of `running`, gives way to the first that waits; None where nobody has to."""
        ...


class ByOrder(ABC):
    """Who goes first gives way last, and is let in where all its tokens fit: what the policies here have in common."""

    __slots__ = ()

    @abstractmethod
    def order_key(self, request: Request, now: float) -> OrderKey:
        """Waiting requests are admitted by ascending key."""

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The last in order gives way."""
        return self.order_key(request, now)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Only if all its tokens fit now."""
        return fits_now(num_blocks_needed, num_available_blocks)


def ignored_options(policy: SchedulingPolicy) -> tuple[str, ...]:
    """Which fields of `RequestOptions` change nothing under a policy, by its own word."""
    heeds = getattr(policy, "heeds", _WISHES)
    return tuple(name for name in _WISHES if name not in heeds)


def fits_now(num_blocks_needed: int, num_available_blocks: int) -> bool:
    """Admission that wants room for all tokens: starting what will soon be preempted is work for nothing."""
    return num_blocks_needed <= num_available_blocks


def estimated_work_s(request: Request, seconds_per_prompt_token: float, seconds_per_new_token: float) -> float:
    """Seconds that a request takes alone, if its answer gets as long as it may.

    That is what is known before: true where `max_tokens` is true to the answer, else an upper bound.
    """
    num_new_tokens = request.max_total_tokens - request.num_prompt_tokens
    return request.num_prompt_tokens * seconds_per_prompt_token + num_new_tokens * seconds_per_new_token
