"""In-process asyncio client of an engine: a background thread steps the engine for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.output_coalescer import OutputCoalescer
from aethermind.engine.serving.engine_client import EngineClient
from aethermind.errors import ComputationError, EngineDeadError, InvalidArgumentError, describe_exception
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine
    from aethermind.engine.requests.output_delta import OutputDelta, OutputSource
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.guidance import Guide
    from aethermind.sampling.params import SamplingParams

__all__ = ["AsyncEngine"]

_log = get_logger(__name__)
_Result = TypeVar("_Result")


class AsyncEngine(EngineClient):
    """An engine for the tasks of one event loop, whose requests are batched together.

    The engine may be shared with an LLM in other threads and with other AsyncEngines.

    async with AsyncEngine(llm.engine) as engine:
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    Outputs are cumulative, so a slow task skips intermediate outputs and never blocks the engine. If a
    step fails, or the engine is closed, every open request fails with EngineDeadError, and so does every new one.
    Leaving `async with` aborts the requests of this client, but not the engine, which belongs to its LLM.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._calls: set[asyncio.Future[Any]] = set()
        self._commands: list[Callable[[], object]] = []
        self._coalescer = OutputCoalescer()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    async def __aenter__(self) -> AsyncEngine:
        if self._thread is not None:
            raise InvalidArgumentError("This AsyncEngine was entered before; make another one over the same engine.")
        self._loop = asyncio.get_running_loop()
        self._engine.add_listener(self)
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
        """The current statistics of the engine."""
        return EngineStats.of(self._engine)

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """Tokenize a prompt; `generate` takes either form. InvalidArgumentError if it is malformed."""
        return await self._engine.prompts.read_beside(prompt)

    async def call(self, function: Callable[[Engine], _Result]) -> _Result:
        """Run `function` on the engine between two steps; return its result or raise its exception.

        Not part of `EngineClient`, because it needs the engine in this process.
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
                self._call_in_loop(_set_result, result, None, error)
            else:
                self._call_in_loop(_set_result, result, value, None)

        self._submit(run)
        return await result

    async def _call_utility(self, method: str, **arguments: Any) -> Any:
        return await self.call(lambda engine: getattr(engine, method)(**arguments))

    async def close(self) -> None:
        """Stop after the current step; open requests fail with EngineDeadError."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._fail(EngineDeadError("The engine was closed before the request was finished."))

    def put(self, sources: Sequence[OutputSource]) -> None:
        """Receive the requests with new output, including those of other clients (see `EngineListener`)."""
        self._coalescer.put(sources)

    def closed(self) -> None:
        """Wake the thread: the engine was closed by its owner."""
        with self._wake:
            self._wake.notify()

    def _abort(self, name: str) -> None:
        def abort() -> None:
            if name in self._coalescer.names:
                self._engine.abort(name)

        self._submit(abort)

    def _forget(self, name: str) -> None:
        def forget() -> None:
            if self._coalescer.drop(name):
                self._engine.abort(name)

        self._submit(forget)

    # Commands go from the event loop to the thread, and output goes back.

    def _submit(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is closed, so no task is waiting
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
            failure = EngineDeadError(f"The engine failed: {describe_exception(error)}")
        with engine.lock:
            engine.remove_listener(self)
            for name in list(self._coalescer.names):
                engine.abort(name)
        if failure is not None:
            self._call_in_loop(self._fail, failure)

    def _serve(self) -> bool:
        """Wait for work, then run commands and a step under the engine's lock. Returns False when it has to stop."""
        engine, coalescer = self._engine, self._coalescer
        with self._wake:
            while not (self._commands or self._is_stopping or engine.is_closed or coalescer.names):
                self._wake.wait()
            commands, self._commands = self._commands, []
        with engine.lock:
            for command in commands:
                command()
            if self._is_stopping:
                return False
            if engine.is_closed:
                raise EngineDeadError("The engine was closed before the request was finished.")
            if coalescer.names and engine.has_unfinished:
                engine.advance()
            outputs: list[tuple[str, OutputDelta | Exception]] = [*coalescer.take()]
            if coalescer.names and not engine.has_unfinished and not outputs:
                lost = [name for name in list(coalescer.names) if coalescer.drop(name)]
                outputs = [(name, ComputationError(f"Request {name} was lost in a step that failed.")) for name in lost]
        if outputs:
            self._call_in_loop(self._deliver, outputs)
        return True

    async def _add(
        self,
        name: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        options: RequestOptions | None,
        hold_s: float,
    ) -> None:
        guide: Guide | None = None
        if (compiling := self._engine.prepare(params)) is not None:
            guide = await asyncio.wrap_future(compiling)

        def add(engine: Engine) -> None:
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
            self._coalescer.open(name, hold_s)

        await self.call(add)

    def _deliver(self, outputs: list[tuple[str, OutputDelta | Exception]]) -> None:
        for name, output in outputs:
            self._requests.deliver(name, output)

    def _fail(self, failure: EngineDeadError) -> None:
        failure = self._requests.failure or failure  # keep the first failure: it is the cause
        for result in list(self._calls):
            _set_result(result, None, failure)
        self._requests.fail(failure)


def _set_result(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():  # the waiting task was cancelled
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
