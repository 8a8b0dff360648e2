"""The interface of an engine for a server; the engine runs in this process (`AsyncEngine`) or in one of its own.

All arguments and results are plain values: token ids, parameters, outputs, arrays. A new operation needs a method here,
because a function that takes the engine cannot be sent to another process.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from aethermind.engine.requests.output_delta import OutputAccumulator
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.errors import EngineDeadError, InvalidArgumentError, RequestTimeoutError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.engine.requests.sessions import SessionInfo
    from aethermind.sampling.params import SamplingParams

__all__ = ["EngineClient", "RequestStreams"]

_NUMBERS = itertools.count()
"""Numbers of request ids, shared by all clients of this process because they may share an engine."""


class EngineClient(ABC):
    """One engine for the tasks of one event loop. While it is down, new requests raise its `failure`."""

    def __init__(self) -> None:
        self._requests = RequestStreams(EngineDeadError("The engine was not started; use `async with`."))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> EngineDeadError | None:
        """Why no request is served at present, and what will happen next; None while requests are served."""
        return self._requests.failure

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._requests.failure is None

    @property
    def num_open(self) -> int:
        """The number of open requests."""
        return len(self._requests)

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The id of the engine's process; None if the engine runs in this process, or if there is none at present."""

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """The latest statistics of the engine."""

    @abstractmethod
    async def read(self, prompt: Prompt) -> EnginePrompt:
        """Tokenize a prompt; `generate` takes either form. InvalidArgumentError if it is malformed."""

    async def generate(
        self,
        prompt: Prompt | EnginePrompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        hold_s: float = 0.0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the cumulative output whenever it has grown; the last one is finished. `options` are the adapter, the
        session, and what the scheduler needs.

        Leaving the loop, cancelling the task or closing the generator ends the request and frees its blocks.

        Output may be held back for `hold_s` seconds to coalesce it, except for the first token and the end.

        Raises InvalidArgumentError and ContextLengthError if the request cannot be served, RequestTimeoutError if it is
        not finished after `timeout_s` seconds, EngineDeadError if the engine failed or was closed.
        """
        accumulators: list[OutputAccumulator] = []

        async def add(name: str) -> None:
            read = prompt if isinstance(prompt, EnginePrompt) else await self.read(prompt)
            accumulators.append(OutputAccumulator(read.text, list(read.token_ids)))
            await self._add(name, read, params, options, hold_s)

        async with aclosing(self._requests.follow(request_id, add, self._forget, timeout_s=timeout_s)) as deltas:
            async for delta in deltas:
                yield accumulators[0].add(delta)

    def stream_deltas(
        self,
        prompt: EnginePrompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        hold_s: float = 0.0,
    ) -> AsyncGenerator[OutputDelta, None]:
        """Like `generate`, but yield only the new output each time. If the caller is slow, deltas are merged."""

        async def add(name: str) -> None:
            await self._add(name, prompt, params, options, hold_s)

        return self._requests.follow(request_id, add, self._forget, timeout_s=timeout_s)

    def abort(self, request_id: str) -> bool:
        """End an open request; its reader gets the output so far, finished with `abort`. False if it is not open."""
        return self._requests.abort(request_id, self._abort)

    async def embed(
        self, prompt: EnginePrompt, pooling: str | None, *, is_normalized: bool, adapter: str = ""
    ) -> npt.NDArray[np.float32]:
        """The embedding of a text, float32 [hidden_size] (see `Engine.embed`), computed between two steps."""
        token_ids = list(prompt.tokens_to_embed())
        vector: npt.NDArray[np.float32] = await self._call_utility(
            "embed", token_ids=token_ids, pooling=pooling, is_normalized=is_normalized, adapter=adapter
        )
        return vector

    async def manage_session(self, action: str, name: str = "") -> list[SessionInfo]:
        """List, save, load, delete, protect or unprotect sessions between two steps (see `Engine.manage_session`)."""
        found: list[SessionInfo] = await self._call_utility("manage_session", action=action, name=name)
        return found

    async def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> dict[str, int | None]:
        """Change the limits of later steps, and return all by name (see `Engine.adjust`)."""
        limits: dict[str, int | None] = await self._call_utility(
            "adjust",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_prefill_chunk=max_prefill_chunk,
        )
        return limits

    async def load_adapter(self, name: str, path: str) -> list[str]:
        """Load a LoRA adapter between two steps, and return the names of all (see `Engine.load_adapter`)."""
        names: list[str] = await self._call_utility("load_adapter", name=name, path=path)
        return names

    async def unload_adapter(self, name: str) -> list[str]:
        """Unload a LoRA adapter, and return the names of the others (see `Engine.unload_adapter`)."""
        names: list[str] = await self._call_utility("unload_adapter", name=name)
        return names

    async def drain(self) -> None:
        """Wait until no request is open. New requests are still accepted; the caller has to reject them."""
        await self._requests.drained()

    @abstractmethod
    async def close(self) -> None:
        """Stop after the current step; open requests fail with EngineDeadError."""

    @abstractmethod
    async def _add(
        self,
        name: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        options: RequestOptions | None,
        hold_s: float,
    ) -> None:
        """Add a request to the engine; its output is passed to `RequestStreams.deliver`."""

    @abstractmethod
    def _abort(self, name: str) -> None:
        """Ask the engine to abort a request; its output so far is delivered."""

    @abstractmethod
    def _forget(self, name: str) -> None:
        """Ask the engine to end a request, if it is still open, and discard its output."""

    @abstractmethod
    async def _call_utility(self, method: str, **arguments: Any) -> Any:
        """Call a method of the engine between two steps; returns its result or raises its error."""


class RequestStreams:
    """The open requests of the tasks of one event loop. Mutable.

    `failure` says why no request is served; it is None while requests are served.
    """

    def __init__(self, failure: EngineDeadError) -> None:
        self.failure: EngineDeadError | None = failure
        self._collectors: dict[str, _OutputCollector] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._collectors)

    def __contains__(self, name: str) -> bool:
        return name in self._collectors

    async def follow(
        self,
        name: str | None,
        add: Callable[[str], Awaitable[None]],
        forget: Callable[[str], None],
        *,
        timeout_s: float | None,
    ) -> AsyncGenerator[OutputDelta, None]:
        """Open a request under `name` or a new name, call `add`, and yield its deltas until it is finished.

        `forget` is called once the request was opened. Raises errors that were delivered, RequestTimeoutError after
        `timeout_s` seconds, and `failure`.
        """
        name = f"async-{next(_NUMBERS)}" if name is None else name
        collector = self._open(name)
        # One timer for the whole request: a timeout around each delta would cost more than taking the delta.
        timer = None
        if timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(timeout_s, collector.put, _timed_out(name, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):
                await add(name)
            collector.is_added = True
            if collector.abort is not None:
                collector.abort(name)
            while True:
                delta = await collector.take()
                delta.raise_error()
                yield delta
                if delta.finished:
                    return
        except TimeoutError:
            raise _timed_out(name, timeout_s) from None
        finally:
            if timer is not None:
                timer.cancel()
            del self._collectors[name]
            if not self._collectors:
                self._is_idle.set()
            forget(name)

    def abort(self, name: str, abort: Callable[[str], None]) -> bool:
        """Call `abort` for an open request, as soon as it is added; False if it is not open."""
        collector = self._collectors.get(name)
        if collector is None:
            return False
        if collector.is_added:
            abort(name)
        else:
            collector.abort = abort
        return True

    def deliver(self, name: str, output: OutputDelta | Exception) -> None:
        """Pass new output of a request, or an error, to its reader. It is dropped if the request is not open."""
        collector = self._collectors.get(name)
        if collector is not None:
            collector.put(output)

    def fail(self, failure: EngineDeadError) -> None:
        """Fail all open requests, and new ones until `failure` is reset."""
        self.failure = failure
        for collector in self._collectors.values():
            collector.put(failure)

    async def drained(self) -> None:
        """Wait until no request is open."""
        await self._is_idle.wait()

    def _open(self, name: str) -> _OutputCollector:
        if self.failure is not None:
            raise self.failure
        if name in self._collectors:
            raise InvalidArgumentError(f"Request id {name!r} is in use; give each request an id of its own.")
        self._is_idle.clear()
        self._collectors[name] = collector = _OutputCollector()
        return collector


def _timed_out(name: str, timeout_s: float | None) -> RequestTimeoutError:
    return RequestTimeoutError(
        f"Request {name} was not finished after {timeout_s:g} seconds and was cancelled; allow more time, or ask for "
        "fewer tokens."
    )


class _OutputCollector:
    """Output of one request that its reader has not taken yet. Deltas are merged if the reader is slow. Mutable.

    `abort` is called once the request `is_added`, if it was aborted before.
    """

    __slots__ = ("_output", "_waiter", "abort", "is_added")

    def __init__(self) -> None:
        self.is_added = False
        self.abort: Callable[[str], None] | None = None
        self._output: OutputDelta | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: OutputDelta | Exception) -> None:
        pending = self._output
        if isinstance(pending, Exception) or (pending is not None and pending.finished):
            return
        if pending is None or isinstance(output, Exception):
            self._output = output
        else:
            pending.merge(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> OutputDelta:
        """Wait for output that was not taken yet, and return it. Only one task may wait."""
        if self._output is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        if isinstance(output, Exception):
            raise output
        assert output is not None
        return output
