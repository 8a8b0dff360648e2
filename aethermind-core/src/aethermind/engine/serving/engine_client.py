"""What a server needs of an engine, whether it runs in this process (`AsyncEngine`) or in one of its own.

Everything that crosses is a plain value: token ids, parameters, answers, vectors. Whoever needs something more of an
engine adds a method here, named after what it does; a function over the engine itself cannot leave the process.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aethermind.errors import EngineDeadError, InvalidArgumentError, RequestTimeoutError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["EngineClient", "RequestStreams"]


class EngineClient(ABC):
    """One engine for the tasks of one event loop. Whatever is asked while it is down raises its `failure`."""

    def __init__(self) -> None:
        self._requests = RequestStreams(EngineDeadError("The engine was not started; use `async with`."))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> EngineDeadError | None:
        """Why nothing is served at the moment, and whether that will change; None while requests are served."""
        return self._requests.failure

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._requests.failure is None

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._requests)

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The id of the engine's process; None where it has none of its own, or there is none at the moment."""

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """What the engine does at the moment, or did last when it could tell."""

    @abstractmethod
    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids. InvalidArgumentError says what is wrong with it."""

    @abstractmethod
    def generate(
        self,
        prompt: Prompt | EnginePrompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        hold_s: float = 0.0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer so far whenever it has grown, the finished one last. `options` are about the whole request.

        Leaving the loop, cancelling the task or closing the generator ends the request and frees its blocks.

        What is new of a growing answer may be held back for `hold_s` seconds, so that more of it is told at once; its
        first token and its end never are.

        Raises InvalidArgumentError and ContextLengthError for what cannot be served, RequestTimeoutError when the
        answer is not finished after `timeout_s` seconds, EngineDeadError when the engine failed or was closed.
        """

    def abort(self, request_id: str) -> bool:
        """End an open request; whoever waits for it gets what there is, finished with `abort`. False if none is."""
        return self._requests.abort(request_id, self._abort)

    async def embed(
        self, prompt: EnginePrompt, pooling: str | None, *, is_normalized: bool, adapter: str = ""
    ) -> npt.NDArray[np.float32]:
        """The vector of a text, float32 [hidden_size] (see `Engine.embed`), computed between two steps."""
        token_ids = list(prompt.tokens_to_embed())
        vector: npt.NDArray[np.float32] = await self._call_utility(
            "embed", token_ids=token_ids, pooling=pooling, is_normalized=is_normalized, adapter=adapter
        )
        return vector

    async def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> None:
        """Change the limits of the steps to come (see `Engine.adjust`), until the engine is started again."""
        await self._call_utility(
            "adjust",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_prefill_chunk=max_prefill_chunk,
        )

    async def drain(self) -> None:
        """Wait until no request is open. New ones are still taken: whoever drains turns them away at the door."""
        await self._requests.drained()

    @abstractmethod
    async def close(self) -> None:
        """Stop after the step under way; requests that are open end with EngineDeadError."""

    @abstractmethod
    async def _call_utility(self, method: str, **arguments: Any) -> Any:
        """Have the engine's method of that name called between two steps; returns or raises what it does."""

    @abstractmethod
    def _abort(self, name: str) -> None:
        """Have the engine end a request that was added, and tell what there is of it."""


_NUMBERS = itertools.count()
"""Of all clients of this process: several may share an engine, which tells requests apart by their ids."""


class RequestStreams:
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
