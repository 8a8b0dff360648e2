"""How much one server takes at once, from everybody and from each tenant, and what it says when that is too little."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from aethermind.errors import InvalidArgumentError
from aethermind.server.openai.errors import ApiError
from aethermind.server.rate import WINDOW_S, SlidingSum
from aethermind.server.tenants import ANYONE, Tenant

__all__ = ["Admission", "Limits", "Stay"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what clients may ask for. InvalidArgumentError for those that let nobody in."""

    max_open_requests: int = 256
    """Answers being written or waited for at once; whoever comes after is told to come again."""
    max_queued_requests: int = 256
    """Of those, answers that have not begun."""
    max_queued_tokens: int = 1 << 20
    """Prompt tokens of those that have not begun."""
    max_body_bytes: int = 4 << 20
    """Bytes of a request's body."""
    max_header_bytes: int = 64 << 10
    """Bytes of a request's line and headers."""
    max_json_depth: int = 64
    """Lists and objects inside each other in a body."""
    request_timeout_s: float = 600.0
    """Seconds until an answer has to be finished."""
    idle_timeout_s: float = 60.0
    """Seconds that a connection may be silent while a request is on its way in."""
    slow_reader_timeout_s: float = 30.0
    """Seconds that a client may take to read what the buffers of its stream hold."""
    drain_timeout_s: float = 30.0
    """Seconds that open requests get when the server is told to stop."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise InvalidArgumentError(f"{one.name} should be more than 0, got {value!r}.")


@dataclass(slots=True)
class _Account:
    """What one tenant has taken."""

    num_open: int = 0
    requests: SlidingSum = field(default_factory=SlidingSum)
    tokens: SlidingSum = field(default_factory=SlidingSum)


class Admission:
    """The door: counts who is inside, and turns away who is too many or too late. Mutable."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._accounts: dict[str, _Account] = {}
        self.num_open = 0
        self.num_queued = 0
        self.num_queued_tokens = 0
        self.is_draining = False

    def close(self) -> None:
        """Let nobody in from now on."""
        self.is_draining = True

    async def wait_until_empty(self) -> None:
        """Wait until nobody is inside."""
        await self._is_empty.wait()

    @contextmanager
    def enter(self, num_answers: int = 1, tenant: Tenant = ANYONE) -> Iterator[Stay]:
        """Hold room for some answers. ApiError 503 while the server stops, 429 when it or the tenant has enough."""
        self.check_room(num_answers)
        account = self._accounts.setdefault(tenant.id, _Account())
        self._check_quota(tenant, account, num_answers)
        account.requests.add(1, self._clock())
        account.num_open += num_answers
        self.num_open += num_answers
        self.num_queued += num_answers
        self._is_empty.clear()
        stay = Stay(self, tenant, num_answers)
        try:
            yield stay
        finally:
            stay.begin()
            account.num_open -= num_answers
            self.num_open -= num_answers
            if not self.num_open:
                self._is_empty.set()

    def check_room(self, num_answers: int = 1) -> None:
        """ApiError 503 while the server stops, 429 when it has enough without these answers."""
        if self.is_draining:
            raise ApiError(503, "The server is stopping; ask another one.", code="draining", retry_after_s=5)
        limits = self._limits
        if self.num_open + num_answers > limits.max_open_requests:
            raise _full(
                f"The server has {self.num_open} answers open and takes {limits.max_open_requests}", "overloaded"
            )
        if self.num_queued + num_answers > limits.max_queued_requests:
            raise _full(f"{self.num_queued} answers wait to begin, and {limits.max_queued_requests} may", "queue_full")

    def _check_quota(self, tenant: Tenant, account: _Account, num_answers: int) -> None:
        quota, now = tenant.quota, self._clock()
        most = quota.max_concurrency
        if most is not None and account.num_open + num_answers > most:
            raise _full(f"This key has {account.num_open} answers open and may have {most}", "key_concurrency")
        most = quota.requests_per_minute
        if most is not None and (wait := account.requests.wait_s(most - 1, now)):
            raise _full(f"This key may make {most} requests a minute", "key_request_rate", wait)
        most = quota.tokens_per_minute
        if most is not None and (wait := account.tokens.wait_s(most - 1, now)):
            raise _full(f"This key may use {most} tokens a minute", "key_token_rate", wait)

    def queue(self, tenant: Tenant, num_tokens: int) -> None:
        """Take a prompt's tokens into account. ApiError 429 where they are too many."""
        most = self._limits.max_queued_tokens
        # A prompt that is longer than all that may wait is taken where nobody waits, else it never would be.
        if self.num_queued_tokens and self.num_queued_tokens + num_tokens > most:
            raise _full(
                f"{self.num_queued_tokens} prompt tokens wait to be read, and {most} may", "queue_full_of_tokens"
            )
        account, now = self._accounts[tenant.id], self._clock()
        budget = tenant.quota.tokens_per_minute
        if budget is not None and num_tokens > budget:
            raise ApiError(
                400,
                f"The prompt has {num_tokens} tokens, and this key may use {budget} a minute. Shorten it.",
                code="key_token_rate",
            )
        if budget is not None and (wait := account.tokens.wait_s(budget - num_tokens, now)):
            raise _full(f"This key may use {budget} tokens a minute", "key_token_rate", wait)
        account.tokens.add(num_tokens, now)
        self.num_queued_tokens += num_tokens

    def spend(self, tenant: Tenant, num_tokens: int) -> None:
        """Count tokens that were written for a tenant."""
        self._accounts[tenant.id].tokens.add(num_tokens, self._clock())


class Stay:
    """One request's time inside: it is queued until its answer begins. Mutable."""

    def __init__(self, admission: Admission, tenant: Tenant, num_answers: int) -> None:
        self._admission = admission
        self._num_answers = num_answers
        self._num_tokens = 0
        self.tenant = tenant

    def queue(self, num_tokens: int) -> None:
        """Wait with so many prompt tokens. ApiError 429 where they are too many."""
        self._admission.queue(self.tenant, num_tokens)
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """Its answer begins, or it leaves; whatever comes after the first time is nothing."""
        if not self._num_answers:
            return
        self._admission.num_queued -= self._num_answers
        self._admission.num_queued_tokens -= self._num_tokens
        self._num_answers = self._num_tokens = 0

    def spend(self, num_tokens: int) -> None:
        """Count tokens of its answer."""
        self._admission.spend(self.tenant, num_tokens)


def _full(what: str, code: str, wait_s: float = 1.0) -> ApiError:
    seconds = max(1, math.ceil(min(wait_s, WINDOW_S)))
    return ApiError(429, f"{what}; try again in {seconds} s.", code=code, retry_after_s=seconds)
