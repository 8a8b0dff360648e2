"""How much one server takes at once, from everybody and from each tenant, and what it says when that is too little."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

from aethermind.errors import InvalidArgumentError
from aethermind.server.openai.errors import ApiError, draining
from aethermind.server.rate import WINDOW_S, SlidingSum
from aethermind.server.tenants import ANYONE, Tenant

__all__ = ["Admission", "AnswerRoom", "Limits", "Stay"]


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
    num_reserved: int = 0
    """Tokens that its open answers may still take."""
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
        if not self.closed.done():
            self.closed.set_result(None)

    @cached_property
    def closed(self) -> asyncio.Future[None]:
        """Done when nobody is let in any more: for who would wait outside."""
        return asyncio.get_running_loop().create_future()

    async def wait_until_empty(self) -> None:
        """Wait until nobody is inside."""
        await self._is_empty.wait()

    @contextmanager
    def enter(self, num_answers: int = 1, tenant: Tenant = ANYONE, field: str = "n") -> Iterator[Stay]:
        """Hold room for some answers. ApiError 503 while the server stops, 429 when it or the tenant has enough, 400
        naming `field` where there will never be room for so many.
        """
        self._check_possible(num_answers, tenant, field)
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
            stay.leave()
            account.num_open -= num_answers
            self.num_open -= num_answers
            if not self.num_open:
                self._is_empty.set()

    def check_room(self, num_answers: int = 1) -> None:
        """ApiError 503 while the server stops, 429 when it has enough without these answers."""
        if self.is_draining:
            raise draining()
        limits = self._limits
        if self.num_open + num_answers > limits.max_open_requests:
            raise _full(
                f"The server has {self.num_open} answers open and takes {limits.max_open_requests}", "overloaded"
            )
        if self.num_queued + num_answers > limits.max_queued_requests:
            raise _full(f"{self.num_queued} answers wait to begin, and {limits.max_queued_requests} may", "queue_full")

    def _check_possible(self, num_answers: int, tenant: Tenant, field: str) -> None:
        bounds = [
            (self._limits.max_open_requests, "overloaded"),
            (self._limits.max_queued_requests, "queue_full"),
            (tenant.quota.max_concurrency, "key_concurrency"),
        ]
        most, code = min((most, code) for most, code in bounds if most is not None)
        if num_answers > most:
            message = f"The request is for {num_answers} answers at once, and may be for {most}. Ask for fewer."
            raise ApiError(400, message, param=field, code=code)

    def _check_quota(self, tenant: Tenant, account: _Account, num_answers: int) -> None:
        quota, now = tenant.quota, self._clock()
        most = quota.max_concurrency
        if most is not None and account.num_open + num_answers > most:
            raise _full(f"This key has {account.num_open} answers open and may have {most}", "key_concurrency")
        most = quota.requests_per_minute
        if most is not None and (wait := account.requests.wait_s(most - 1, now)):
            raise _full(f"This key may make {most} requests a minute", "key_request_rate", wait)
        most = quota.tokens_per_minute
        if most is not None and (wait := _wait_s(account, most - 1, now)):
            raise _full(f"This key may use {most} tokens a minute", "key_token_rate", wait)

    def queue(self, tenant: Tenant, num_tokens: int, answer: AnswerRoom) -> int:
        """Take a prompt's tokens into account, and reserve the tenant's for its answer; returns how many these are.
        ApiError 429 where they are too many, 400 where they always will be.
        """
        most = self._limits.max_queued_tokens
        # A prompt that is longer than all that may wait is taken where nobody waits, else it never would be.
        if self.num_queued_tokens and self.num_queued_tokens + num_tokens > most:
            raise _full(
                f"{self.num_queued_tokens} prompt tokens wait to be read, and {most} may", "queue_full_of_tokens"
            )
        reserved = self._reserved(tenant, num_tokens, answer)
        account = self._accounts[tenant.id]
        account.num_reserved += reserved
        account.tokens.add(num_tokens, self._clock())
        self.num_queued_tokens += num_tokens
        return reserved

    def _reserved(self, tenant: Tenant, num_tokens: int, answer: AnswerRoom) -> int:
        account, now, budget = self._accounts[tenant.id], self._clock(), tenant.quota.tokens_per_minute
        if budget is None:
            return 0
        asked = answer.num_tokens if answer.field is not None else 0
        if num_tokens + asked > budget:
            way_out = "Shorten it." if num_tokens > budget else f"Lower {answer.field}."
            raise ApiError(
                400,
                f"The prompt has {num_tokens} tokens and its answer up to {asked}, and this key may use {budget} a "
                f"minute. {way_out}",
                param=None if num_tokens > budget else answer.field,
                code="key_token_rate",
            )
        if wait := _wait_s(account, budget - num_tokens - asked, now):
            raise _full(f"This key may use {budget} tokens a minute", "key_token_rate", wait)
        left = budget - account.tokens.total(now) - account.num_reserved - num_tokens
        return min(answer.num_tokens, left)

    def spend(self, tenant: Tenant, num_tokens: int) -> None:
        """Count tokens that were written for a tenant."""
        self._accounts[tenant.id].tokens.add(num_tokens, self._clock())

    def release(self, tenant: Tenant, num_tokens: int) -> None:
        """Give back tokens that were reserved for a tenant."""
        self._accounts[tenant.id].num_reserved -= num_tokens


class AnswerRoom(NamedTuple):
    """The most tokens that the answers to a request may have, and the field that says so. Where the client left that
    open they may fill the context, which few do: of a tenant's tokens they then hold no more than what is left.
    """

    num_tokens: int = 0
    field: str | None = None


NO_ANSWER = AnswerRoom()


class Stay:
    """One request's time inside: it is queued until its answer begins. Mutable."""

    def __init__(self, admission: Admission, tenant: Tenant, num_answers: int) -> None:
        self._admission = admission
        self._num_answers = num_answers
        self._num_tokens = 0
        self._num_reserved = 0
        self.tenant = tenant

    def queue(self, num_tokens: int, answer: AnswerRoom = NO_ANSWER) -> None:
        """Wait with so many prompt tokens. ApiError 429 where they are too many for now, 400 where they always are."""
        self._num_reserved = self._admission.queue(self.tenant, num_tokens, answer)
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """Its answer begins, or it leaves; whatever comes after the first time is nothing."""
        if not self._num_answers:
            return
        self._admission.num_queued -= self._num_answers
        self._admission.num_queued_tokens -= self._num_tokens
        self._num_answers = self._num_tokens = 0

    def spend(self, num_tokens: int) -> None:
        """Count tokens of its answer, which are no longer reserved."""
        self._admission.spend(self.tenant, num_tokens)
        self._release(min(num_tokens, self._num_reserved))

    def leave(self) -> None:
        """It holds nothing any more."""
        self.begin()
        self._release(self._num_reserved)

    def _release(self, num_tokens: int) -> None:
        self._admission.release(self.tenant, num_tokens)
        self._num_reserved -= num_tokens


def _wait_s(account: _Account, most: int, now: float) -> float:
    """Seconds until at most so many tokens are used and reserved. Nobody knows when what is reserved is given back."""
    room = most - account.num_reserved
    return account.tokens.wait_s(max(room, 0), now) or (1.0 if room < 0 else 0.0)


def _full(what: str, code: str, wait_s: float = 1.0) -> ApiError:
    seconds = max(1, math.ceil(min(wait_s, WINDOW_S)))
    return ApiError(429, f"{what}; try again in {seconds} s.", code=code, retry_after_s=seconds)
