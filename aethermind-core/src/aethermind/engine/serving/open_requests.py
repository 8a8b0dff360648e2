"""The requests that tasks of one event loop wait for: each task sees its own grow, whoever computes them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from aethermind.errors import EngineDeadError, InvalidArgumentError, RequestTimeoutError

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput

__all__ = ["OpenRequests"]

_NUMBERS = itertools.count()
"""Of all clients of this process: several may share an engine, which tells requests apart by their ids."""


class OpenRequests:
    """Mutable; for the tasks of one event loop. `failure` says why nothing is served, None while it is."""

    def __init__(self, failure: EngineDeadError) -> None:
        self.failure: EngineDeadError | None = failure
        self._mailboxes: dict[str, _Mailbox] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._mailboxes)

    def __contains__(self, name: str) -> bool:
        return name in self._mailboxes

    async def follow(
        self,
        name: str | None,
        add: Callable[[str], Awaitable[None]],
        forget: Callable[[str], None],
        *,
        timeout_s: float | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Open a request under a name or one of ours, have it added, and yield what is delivered until it is finished.

        `forget` is called however it ends. Raises what was delivered as an error, RequestTimeoutError after
        `timeout_s` seconds, and `failure`.
        """
        name = f"async-{next(_NUMBERS)}" if name is None else name
        mailbox = self._open(name)
        # One alarm for the whole answer: a timeout around each of its tokens would cost more than taking the token.
        alarm = None
        if timeout_s is not None:
            alarm = asyncio.get_running_loop().call_later(timeout_s, mailbox.put, _too_late(name, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):
                await add(name)
            mailbox.is_added = True
            if mailbox.abort is not None:
                mailbox.abort(name)
            while True:
                output = await mailbox.take()
                output.raise_error()
                yield output
                if output.finished:
                    return
        except TimeoutError:
            raise _too_late(name, timeout_s) from None
        finally:
            if alarm is not None:
                alarm.cancel()
            del self._mailboxes[name]
            if not self._mailboxes:
                self._is_idle.set()
            forget(name)

    def abort(self, name: str, abort: Callable[[str], None]) -> bool:
        """Have an open request aborted, as soon as it was added; False if none is open."""
        mailbox = self._mailboxes.get(name)
        if mailbox is None:
            return False
        if mailbox.is_added:
            abort(name)
        else:
            mailbox.abort = abort
        return True

    def deliver(self, name: str, news: RequestOutput | Exception) -> None:
        """The newest state of a request, or why it has none; nobody's where it is not open."""
        mailbox = self._mailboxes.get(name)
        if mailbox is not None:
            mailbox.put(news)

    def fail(self, failure: EngineDeadError) -> None:
        """End every open request with `failure`, and refuse new ones with it until it is taken back."""
        self.failure = failure
        for mailbox in self._mailboxes.values():
            mailbox.put(failure)

    async def drained(self) -> None:
        """Wait until none is open."""
        await self._is_idle.wait()

    def _open(self, name: str) -> _Mailbox:
        if self.failure is not None:
            raise self.failure
        if name in self._mailboxes:
            raise InvalidArgumentError(f"Request id {name!r} is in use; give each request an id of its own.")
        self._is_idle.clear()
        self._mailboxes[name] = mailbox = _Mailbox()
        return mailbox


def _too_late(name: str, timeout_s: float | None) -> RequestTimeoutError:
    return RequestTimeoutError(
        f"Request {name} was not finished after {timeout_s:g} seconds and was cancelled; allow more time, or ask for "
        "fewer tokens."
    )


class _Mailbox:
    """The newest state of one request. What was not taken in time is replaced by what came after.

    `abort` is what to call once it `is_added`, where somebody wanted its end before.
    """

    __slots__ = ("_newest", "_waiter", "abort", "is_added")

    def __init__(self) -> None:
        self.is_added = False
        self.abort: Callable[[str], None] | None = None
        self._newest: RequestOutput | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, newest: RequestOutput | Exception) -> None:
        held = self._newest
        if isinstance(held, Exception) or (held is not None and held.finished):
            return
        self._newest = newest
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> RequestOutput:
        """Wait for a state that was not taken yet; for one task."""
        if self._newest is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        newest, self._newest = self._newest, None
        if isinstance(newest, Exception):
            raise newest
        assert newest is not None
        return newest
