"""Admission control: the server's limits, each tenant's quota, and the errors of requests that exceed them."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aethermind.errors import InvalidArgumentError
from aethermind.plugins.compatibility import deprecated
from aethermind.server.access import ANONYMOUS, Tenant
from aethermind.server.openai.errors import ApiError, draining

__all__ = [
    "AdmissionController",
    "AdmissionTicket",
    "Limits",
    "MAX_LIMIT",
    "OutputTokenBudget",
    "SlidingSum",
    "WINDOW_S",
]

MAX_LIMIT = 2**40
"""Limits are less than this, so that deadlines and sums of them can be computed."""

WINDOW_S = 60.0
"""Length in seconds of the window of rate limits."""

_RENAMED_LIMITS = {
    "max_open_requests": "max_concurrent_requests",
    "idle_timeout_s": "keep_alive_timeout_s",
    "slow_reader_timeout_s": "send_timeout_s",
}
"""Deprecated names of fields of `Limits`, with their present names."""

_Class = TypeVar("_Class")


def _accepts_renamed_limits(limits: type[_Class]) -> type[_Class]:
    """A class decorator: the constructor accepts the deprecated names, too."""
    init: Callable[..., None] = limits.__init__

    @wraps(init)
    def accepting_init(self: object, *args: Any, **names: Any) -> None:
        for name in _RENAMED_LIMITS.keys() & names.keys():
            names[_present_name(name)] = names.pop(name)
        init(self, *args, **names)

    limits.__init__ = accepting_init  # type: ignore[method-assign]
    return limits


def _present_name(name: str) -> str:
    present = _RENAMED_LIMITS.get(name)
    if present is not None:
        deprecated(f"Limits.{name}", instead=f"Limits.{present}", until="0.4", stacklevel=4)
    return present or name


@_accepts_renamed_limits
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the requests of all clients together.

    InvalidArgumentError for a limit that is 0 or less, or `MAX_LIMIT` or more.

    The names `max_open_requests`, `idle_timeout_s` and `slow_reader_timeout_s` are deprecated aliases.
    """

    max_concurrent_requests: int = 256
    """Completions that are queued or generated at once; further requests get a 429."""
    max_queued_requests: int = 256
    """Completions among them that have no token yet."""
    max_queued_tokens: int = 1 << 20
    """Prompt tokens of these completions."""
    max_body_bytes: int = 4 << 20
    """Bytes of a request's body."""
    max_header_bytes: int = 64 << 10
    """Bytes of a request line with its headers."""
    max_json_depth: int = 64
    """Nesting depth of lists and objects in a body."""
    request_timeout_s: float = 600.0
    """Seconds in which a completion has to be finished."""
    keep_alive_timeout_s: float = 60.0
    """Seconds for which a connection may be idle between requests and while a request is received."""
    send_timeout_s: float = 30.0
    """Seconds for which a client may leave a full send buffer unread."""
    drain_timeout_s: float = 30.0
    """Seconds that requests in flight have to finish when the server stops."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < MAX_LIMIT:
                raise InvalidArgumentError(
                    f"{limit.name} should be more than 0 and less than 2**40, got {value!r:.40}."
                )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _RENAMED_LIMITS:
                raise AttributeError(f"Limits has no field {name!r}.")
            return getattr(self, _present_name(name))


class SlidingSum:
    """A sum over the last `WINDOW_S` seconds, in buckets of one second. Mutable."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, amount: int, now: float) -> None:
        """Add `amount` in the second of `now`."""
        second = math.floor(now)
        if self._seconds and self._seconds[-1][0] >= second:
            last, previous = self._seconds.pop()
            self._seconds.append((last, previous + amount))
        else:
            self._seconds.append((second, amount))
        self._total += amount

    def total(self, now: float) -> int:
        """The sum over the window that ends at `now`."""
        while self._seconds and self._seconds[0][0] <= now - WINDOW_S:
            self._total -= self._seconds.popleft()[1]
        return self._total

    def wait_s(self, limit: int, now: float) -> float:
        """Seconds from `now` until the sum is at most `limit` if nothing is added; 0 if it already is."""
        total, wait = self.total(now), 0.0
        for second, amount in self._seconds:
            if total <= limit:
                break
            total -= amount
            wait = second + WINDOW_S - now
        return wait


@dataclass(slots=True)
class _Usage:
    """What one tenant uses of its quota."""

    num_open: int = 0
    num_reserved: int = 0
    """Output tokens reserved for its requests in flight."""
    requests: SlidingSum = field(default_factory=SlidingSum)
    tokens: SlidingSum = field(default_factory=SlidingSum)


class OutputTokenBudget(NamedTuple):
    """The upper bound of a request's output tokens, and the field of the request that sets it.

    `field` is None if the client set no bound. The output may then fill the context. Little output does, so a tenant
    with a token quota reserves at most what is left of its quota.
    """

    num_tokens: int = 0
    field: str | None = None


NO_OUTPUT = OutputTokenBudget()


class AdmissionController:
    """Counts the requests in flight and rejects those that exceed a limit or quota. Mutable."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        """The limits in force. They may be replaced at any time; later requests are checked against the new limits."""
        self._clock = clock
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._usages: dict[str, _Usage] = {}
        self.num_open = 0
        self.num_queued = 0
        self.num_queued_tokens = 0
        self.is_draining = False

    def close(self) -> None:
        """Reject all further requests."""
        self.is_draining = True
        if not self.closed.done():
            self.closed.set_result(None)

    @cached_property
    def closed(self) -> asyncio.Future[None]:
        """Done once all further requests are rejected, so that requests whose body is still read can end."""
        return asyncio.get_running_loop().create_future()

    async def wait_until_empty(self) -> None:
        """Wait until no request is in flight."""
        await self._is_empty.wait()

    @contextmanager
    def admit(
        self, num_completions: int = 1, tenant: Tenant = ANONYMOUS, field: str = "n"
    ) -> Iterator[AdmissionTicket]:
        """Admit a request for some completions; its ticket is released when the context is left.

        ApiError 503 while the server stops, 429 if a limit or the tenant's quota is reached, 400 naming `field` if the
        request exceeds one by itself.
        """
        self._check_satisfiable(num_completions, tenant, field)
        self.check_capacity(num_completions)
        usage = self._usages.setdefault(tenant.id, _Usage())
        self._check_quota(tenant, usage, num_completions)
        usage.requests.add(1, self._clock())
        usage.num_open += num_completions
        self.num_open += num_completions
        self.num_queued += num_completions
        self._is_empty.clear()
        ticket = AdmissionTicket(self, tenant, num_completions)
        try:
            yield ticket
        finally:
            ticket.release()
            usage.num_open -= num_completions
            self.num_open -= num_completions
            if not self.num_open:
                self._is_empty.set()

    def check_capacity(self, num_completions: int = 1) -> None:
        """ApiError 503 while the server stops, 429 if its limits leave no capacity for these completions."""
        if self.is_draining:
            raise draining()
        limits = self.limits
        if self.num_open + num_completions > limits.max_concurrent_requests:
            raise _too_many(
                f"The server has {self.num_open} completions open and takes {limits.max_concurrent_requests}",
                "overloaded",
            )
        if self.num_queued + num_completions > limits.max_queued_requests:
            raise _too_many(
                f"{self.num_queued} completions wait to begin, and {limits.max_queued_requests} may", "queue_full"
            )

    def _check_satisfiable(self, num_completions: int, tenant: Tenant, field: str) -> None:
        bounds = [
            (self.limits.max_concurrent_requests, "overloaded"),
            (self.limits.max_queued_requests, "queue_full"),
            (tenant.quota.max_concurrency, "key_concurrency"),
        ]
        limit, code = min((limit, code) for limit, code in bounds if limit is not None)
        if num_completions > limit:
            message = (
                f"The request is for {num_completions} completions at once, and may be for {limit}. Ask for fewer."
            )
            raise ApiError(400, message, param=field, code=code)

    def _check_quota(self, tenant: Tenant, usage: _Usage, num_completions: int) -> None:
        quota, now = tenant.quota, self._clock()
        limit = quota.max_concurrency
        if limit is not None and usage.num_open + num_completions > limit:
            raise _too_many(f"This key has {usage.num_open} completions open and may have {limit}", "key_concurrency")
        limit = quota.requests_per_minute
        if limit is not None and (wait := usage.requests.wait_s(limit - 1, now)):
            raise _too_many(f"This key may make {limit} requests a minute", "key_request_rate", wait)
        limit = quota.tokens_per_minute
        if limit is not None and (wait := _wait_s(usage, limit - 1, now)):
            raise _too_many(f"This key may use {limit} tokens a minute", "key_token_rate", wait)

    def enqueue(self, tenant: Tenant, num_tokens: int, output: OutputTokenBudget) -> int:
        """Count prompt tokens as queued and used, and reserve output tokens of the tenant's quota; returns how many.

        ApiError 429 if they exceed what is left of a limit or quota, 400 if they exceed a quota by themselves.
        """
        limit = self.limits.max_queued_tokens
        # A prompt with more tokens than the limit is admitted if the queue is empty. Otherwise it would never be.
        if self.num_queued_tokens and self.num_queued_tokens + num_tokens > limit:
            raise _too_many(
                f"{self.num_queued_tokens} prompt tokens wait to be read, and {limit} may", "token_queue_full"
            )
        reserved = self._num_to_reserve(tenant, num_tokens, output)
        usage = self._usages[tenant.id]
        usage.num_reserved += reserved
        usage.tokens.add(num_tokens, self._clock())
        self.num_queued_tokens += num_tokens
        return reserved

    def _num_to_reserve(self, tenant: Tenant, num_tokens: int, output: OutputTokenBudget) -> int:
        usage, now, quota = self._usages[tenant.id], self._clock(), tenant.quota.tokens_per_minute
        if quota is None:
            return 0
        requested = output.num_tokens if output.field is not None else 0
        if num_tokens + requested > quota:
            remedy = "Shorten it." if num_tokens > quota else f"Lower {output.field}."
            raise ApiError(
                400,
                f"The prompt has {num_tokens} tokens and its output up to {requested}, and this key may use {quota} a "
                f"minute. {remedy}",
                param=None if num_tokens > quota else output.field,
                code="key_token_rate",
            )
        if wait := _wait_s(usage, quota - num_tokens - requested, now):
            raise _too_many(f"This key may use {quota} tokens a minute", "key_token_rate", wait)
        remaining = quota - usage.tokens.total(now) - usage.num_reserved - num_tokens
        return min(output.num_tokens, remaining)

    def charge(self, tenant: Tenant, num_tokens: int) -> None:
        """Count output tokens as used by a tenant."""
        self._usages[tenant.id].tokens.add(num_tokens, self._clock())

    def release(self, tenant: Tenant, num_tokens: int) -> None:
        """Release tokens that were reserved for a tenant."""
        self._usages[tenant.id].num_reserved -= num_tokens


class AdmissionTicket:
    """What one admitted request holds: places in the queue until output begins, and reserved tokens. Mutable."""

    def __init__(self, admission: AdmissionController, tenant: Tenant, num_completions: int) -> None:
        self._admission = admission
        self._num_queued = num_completions
        self._num_queued_tokens = 0
        self._num_reserved = 0
        self.tenant = tenant

    def enqueue(self, num_tokens: int, output: OutputTokenBudget = NO_OUTPUT) -> None:
        """Queue the prompt's tokens; the errors are those of `AdmissionController.enqueue`."""
        self._num_reserved = self._admission.enqueue(self.tenant, num_tokens, output)
        self._num_queued_tokens = num_tokens

    def leave_queue(self) -> None:
        """Leave the queue, because output has begun or the request ends. Further calls do nothing."""
        if not self._num_queued:
            return
        self._admission.num_queued -= self._num_queued
        self._admission.num_queued_tokens -= self._num_queued_tokens
        self._num_queued = self._num_queued_tokens = 0

    def charge(self, num_tokens: int) -> None:
        """Count output tokens as used instead of reserved."""
        self._admission.charge(self.tenant, num_tokens)
        self._release(min(num_tokens, self._num_reserved))

    def release(self) -> None:
        """Release all that the ticket holds."""
        self.leave_queue()
        self._release(self._num_reserved)

    def _release(self, num_tokens: int) -> None:
        self._admission.release(self.tenant, num_tokens)
        self._num_reserved -= num_tokens


def _wait_s(usage: _Usage, limit: int, now: float) -> float:
    """Seconds until at most `limit` tokens are used and reserved; 1 if that depends on the release of reservations."""
    unreserved = limit - usage.num_reserved
    return usage.tokens.wait_s(max(unreserved, 0), now) or (1.0 if unreserved < 0 else 0.0)


def _too_many(reason: str, code: str, wait_s: float = 1.0) -> ApiError:
    seconds = max(1, math.ceil(min(wait_s, WINDOW_S)))
    return ApiError(429, f"{reason}; try again in {seconds} s.", code=code, retry_after_s=seconds)
