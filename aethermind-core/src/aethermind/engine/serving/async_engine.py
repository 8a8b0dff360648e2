"""One engine for many asyncio tasks: it steps in a thread of its own, and each task sees its own request grow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.output_coalescer import OutputCoalescer
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.serving.engine_client import EngineClient
from aethermind.errors import ComputationError, EngineDeadError, InvalidArgumentError, in_words
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_builder import OutputUpdate
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.guidance import TokenGuide
    from aethermind.sampling.params import SamplingParams

__all__ = ["AsyncEngine"]

_log = get_logger(__name__)
_Result = TypeVar("_Result")


class AsyncEngine(EngineClient):
    """Requests from the tasks of one event loop, batched together, and with what others ask of the same engine: an LLM
    in other threads, or another AsyncEngine.

    async with AsyncEngine(llm.engine) as engine:
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    A task that is slow to ask misses intermediate states and never holds the engine up: every output is the whole
    answer so far. If a step fails, or the engine is closed, every open request ends with EngineDeadError, and so does
    every new one. Leaving `async with` ends the requests that are open here; the engine stays, and belongs to its LLM.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._calls: set[asyncio.Future[Any]] = set()
        self._commands: list[Callable[[], object]] = []
        self._news = OutputCoalescer()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    async def __aenter__(self) -> AsyncEngine:
        if self._thread is not None:
            raise InvalidArgumentError("This AsyncEngine was entered before; make another one over the same engine.")
        self._loop = asyncio.get_running_loop()
        self._engine.listen(self)
        self._requests.failure = None
        self._thread = threading.Thread(target=self._run, name="aethermind-engine", daemon=True)
        self._thread.start()
        return self

    @property
    def pid(self) -> int | None:
        """None: the engine is in this process."""
        return None

    @property
    def stats(self) -> EngineStats:
        """What the engine does at the moment."""
        return EngineStats.of(self._engine)

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
        """Yield the answer so far whenever it has grown, the finished one last; see `EngineClient.generate`."""

        async def add(name: str) -> None:
            read = prompt if isinstance(prompt, EnginePrompt) else await self.read(prompt)
            guide: TokenGuide | None = None
            if (made := self._engine.prepare(params)) is not None:
                guide = await asyncio.wrap_future(made)
            await self.call(lambda engine: self._add(engine, name, read, params, options, guide, hold_s))

        return self._requests.follow(request_id, add, self._forget, timeout_s=timeout_s)

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids; `generate` takes either. InvalidArgumentError says what is wrong with it."""
        return await self._engine.prompts.read_beside(prompt)

    async def call(self, function: Callable[[Engine], _Result]) -> _Result:
        """Run `function` on the engine between two steps, and return what it returns or raise what it raises.

        Only here, where the engine is in this process: it is no part of `EngineClient`.
        """
        if self._requests.failure is not None:
            raise self._requests.failure
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

    async def _call_utility(self, method: str, **arguments: Any) -> Any:
        return await self.call(lambda engine: getattr(engine, method)(**arguments))

    async def close(self) -> None:
        """Stop after the step under way; requests that are open end with EngineDeadError."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._fail(EngineDeadError("The engine was closed before the request was finished."))

    def put(self, updates: Sequence[OutputUpdate]) -> None:
        """What the engine says came of requests, ours and others' (see `EngineListener`)."""
        self._news.put(updates)

    def closed(self) -> None:
        """The engine was closed by its owner."""
        with self._wake:
            self._wake.notify()

    def _abort(self, name: str) -> None:
        def abort() -> None:
            if name in self._news.names:
                self._engine.abort(name)

        self._submit(abort)

    def _forget(self, name: str) -> None:
        def forget() -> None:
            if self._news.drop(name):
                self._engine.abort(name)

        self._submit(forget)

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
        failure = None
        try:
            while self._serve():
                engine.lock.yield_lock()
        except EngineDeadError as error:
            failure = error
        except Exception as error:
            _log.exception("the engine failed")
            failure = EngineDeadError(f"The engine failed: {in_words(error)}")
        with engine.lock:
            engine.unlisten(self)
            for name in list(self._news.names):
                engine.abort(name)
        if failure is not None:
            self._tell(self._fail, failure)

    def _serve(self) -> bool:
        """Wait until there is something to do, and do it in one turn; False when it is time to stop."""
        engine, news = self._engine, self._news
        with self._wake:
            while not (self._commands or self._is_stopping or engine.is_closed or news.names):
                self._wake.wait()
            commands, self._commands = self._commands, []
        with engine.lock:
            for command in commands:
                command()
            if self._is_stopping:
                return False
            if engine.is_closed:
                raise EngineDeadError("The engine was closed before the request was finished.")
            if news.names and engine.has_unfinished:
                engine.advance()
            told: list[tuple[str, RequestOutput | Exception]] = [*news.take()]
            if news.names and not engine.has_unfinished and not told:
                lost = [name for name in list(news.names) if news.drop(name)]
                told = [(name, ComputationError(f"Request {name} was lost in a step that failed.")) for name in lost]
        if told:
            self._tell(self._deliver, told)
        return True

    def _add(
        self,
        engine: Engine,
        name: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        options: RequestOptions | None,
        guide: TokenGuide | None,
        hold_s: float,
    ) -> None:
        engine.add_request(
            name,
            prompt.token_ids,
            params,
            prompt=prompt.text,
            embeddings=prompt.embeddings,
            is_chat=prompt.is_chat,
            options=options,
            guide=guide,
        )
        self._news.open(name, hold_s)

    def _deliver(self, news: list[tuple[str, RequestOutput | Exception]]) -> None:
        for name, output in news:
            self._requests.deliver(name, output)

    def _fail(self, failure: EngineDeadError) -> None:
        failure = self._requests.failure or failure  # the first one says what went wrong
        for result in list(self._calls):
            _settle(result, None, failure)
        self._requests.fail(failure)


def _settle(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():  # whoever asked was cancelled
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
