"""One engine for many asyncio tasks: it steps in a thread of its own, and each task sees its own request grow."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from aethermind.engine.engine_stats import EngineStats
from aethermind.engine.prompt_reader import EnginePrompt, PromptReader
from aethermind.errors import AetherMindError, EngineDeadError, InvalidArgumentError, RequestTimeoutError
from aethermind.log import get_logger

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.engine import Engine
    from aethermind.engine.output import RequestOutput
    from aethermind.engine.prompt_reader import Prompt
    from aethermind.engine.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["AsyncEngine"]

_LONG_TEXT_CHARS = 8192
"""Texts from here on are read in a thread, so that other tasks go on."""

_log = get_logger(__name__)
_Result = TypeVar("_Result")


class AsyncEngine:
    """Requests from the tasks of one event loop, batched together by an engine that nobody else may use meanwhile.

    async with AsyncEngine(llm.engine) as engine:
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    A task that is slow to ask misses intermediate states and never holds the engine up: every output is the whole
    answer so far. If a step fails, every open request ends with EngineDeadError, and so does every new one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prompts = PromptReader(engine.planned, engine.tokenizer)
        self._ids = itertools.count()
        self._mailboxes: dict[str, _Mailbox] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._commands: list[Callable[[], object]] = []
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="aethermind-engine", daemon=True)
        self._is_stopping = False
        self._failure: EngineDeadError | None = EngineDeadError("The engine was not started; use `async with`.")

    async def __aenter__(self) -> AsyncEngine:
        self._loop = asyncio.get_running_loop()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._failure = None
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> EngineDeadError | None:
        """Why requests are not served; None while they are."""
        return self._failure

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._failure is None

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._mailboxes)

    @property
    def stats(self) -> EngineStats:
        """What the engine does at the moment."""
        return EngineStats.of(self._engine)

    async def generate(
        self,
        prompt: Prompt | EnginePrompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer so far whenever it has grown, the finished one last. `options` are for the scheduler.

        Leaving the loop, cancelling the task or closing the generator ends the request and frees its blocks.
        Raises InvalidArgumentError and ContextLengthError for what cannot be served, RequestTimeoutError when the
        answer is not finished after `timeout_s` seconds, EngineDeadError when the engine failed or was closed.
        """
        name = f"async-{next(self._ids)}" if request_id is None else request_id
        mailbox = self._open(name)
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                read = prompt if isinstance(prompt, EnginePrompt) else await self.read(prompt)
                await self.call(lambda engine: _add(engine, name, read, params, options))
            while True:
                async with asyncio.timeout_at(deadline):
                    output = await mailbox.take()
                if output.error is not None:
                    raise AetherMindError(output.error)
                yield output
                if output.finished:
                    return
        except TimeoutError:
            raise RequestTimeoutError(
                f"Request {name} was not finished after {timeout_s:g} seconds and was cancelled; allow more time, or "
                "ask for fewer tokens."
            ) from None
        finally:
            self._close(name)

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids; `generate` takes either. InvalidArgumentError says what is wrong with it."""
        is_long = isinstance(prompt, str) and len(prompt) >= _LONG_TEXT_CHARS
        return await asyncio.to_thread(self._prompts.read, prompt) if is_long else self._prompts.read(prompt)

    def abort(self, request_id: str) -> bool:
        """End an open request; whoever waits for it gets what there is, finished with `abort`. False if none is."""
        if request_id not in self._mailboxes:
            return False
        self._submit(lambda: self._post(self._engine.abort(request_id)))
        return True

    async def embed(self, prompt: EnginePrompt, pooling: str, *, is_normalized: bool) -> npt.NDArray[np.float32]:
        """The vector of a text, float32 [hidden_size] (see `Engine.embed`), computed between two steps."""
        if prompt.embeddings:
            raise InvalidArgumentError("embed takes texts and token ids; leave prompt_embeds and pictures out.")
        return await self.call(lambda engine: engine.embed(prompt.token_ids, pooling, is_normalized=is_normalized))

    async def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> None:
        """Change the limits of the steps to come (see `Engine.adjust`)."""
        await self.call(
            lambda engine: engine.adjust(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_prefill_chunk=max_prefill_chunk,
            )
        )

    async def call(self, function: Callable[[Engine], _Result]) -> _Result:
        """Run `function` on the engine between two steps, and return what it returns or raise what it raises.

        Only here, where the engine is in this process: it is no part of `EngineClient`.
        """
        if self._failure is not None:
            raise self._failure
        result: asyncio.Future[_Result] = self._loop.create_future()
        self._calls.add(result)
        result.add_done_callback(self._calls.discard)

        def run() -> None:
            try:
                value = function(self._engine)
            except Exception as error:
                self._tell(_settle, result, None, error)
            else:
                self._tell(_settle, result, value, None)

        self._submit(run)
        return await result

    async def drain(self) -> None:
        """Wait until no request is open. New ones are still taken: whoever drains turns them away at the door."""
        await self._is_idle.wait()

    async def close(self) -> None:
        """Stop after the step under way; requests that are open end with EngineDeadError."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._fail(EngineDeadError("The engine was closed before the request was finished."))

    def _open(self, name: str) -> _Mailbox:
        if self._failure is not None:
            raise self._failure
        if name in self._mailboxes:
            raise InvalidArgumentError(f"Request id {name!r} is in use; give each request an id of its own.")
        self._is_idle.clear()
        self._mailboxes[name] = mailbox = _Mailbox()
        return mailbox

    def _close(self, name: str) -> None:
        del self._mailboxes[name]
        if not self._mailboxes:
            self._is_idle.set()
        self._submit(lambda: self._engine.abort(name))  # nothing where it has finished

    # Between the two threads: commands go one way, outputs the other.

    def _submit(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed: nobody waits any more
            _log.debug("an event loop ended before the engine on it was closed")

    def _run(self) -> None:
        engine = self._engine
        try:
            while True:
                with self._wake:
                    while not (self._commands or self._is_stopping or engine.has_unfinished):
                        self._wake.wait()
                    commands, self._commands = self._commands, []
                for command in commands:
                    command()
                if self._is_stopping:
                    return
                if engine.has_unfinished and (outputs := engine.step()):
                    self._tell(self._deliver, outputs)
        except Exception as error:
            _log.exception("the engine failed")
            self._tell(self._fail, EngineDeadError(f"The engine failed: {type(error).__name__}: {error}"))

    def _post(self, output: RequestOutput | None) -> None:
        if output is not None:
            self._tell(self._deliver, [output])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                mailbox.put(output)

    def _fail(self, failure: EngineDeadError) -> None:
        if self._failure is None:
            self._failure = failure
        for result in list(self._calls):
            _settle(result, None, failure)
        for mailbox in self._mailboxes.values():
            mailbox.put(failure)


class _Mailbox:
    """The newest state of one request. What was not taken in time is replaced by what came after."""

    __slots__ = ("_is_full", "_newest")

    def __init__(self) -> None:
        self._newest: RequestOutput | EngineDeadError | None = None
        self._is_full = asyncio.Event()

    def put(self, newest: RequestOutput | EngineDeadError) -> None:
        if isinstance(self._newest, EngineDeadError) or (self._newest is not None and self._newest.finished):
            return
        self._newest = newest
        self._is_full.set()

    async def take(self) -> RequestOutput:
        """Wait for a state that was not taken yet."""
        await self._is_full.wait()
        self._is_full.clear()
        newest, self._newest = self._newest, None
        if isinstance(newest, EngineDeadError):
            raise newest
        assert newest is not None
        return newest


def _add(
    engine: Engine, name: str, prompt: EnginePrompt, params: SamplingParams, options: RequestOptions | None
) -> None:
    engine.add_request(
        name, prompt.token_ids, params, prompt=prompt.text, embeddings=prompt.embeddings, options=options
    )


def _settle(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():  # whoever asked was cancelled
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
