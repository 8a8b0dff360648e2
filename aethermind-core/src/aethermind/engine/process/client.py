"""An engine in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.engine.process.growth import GrowingOutput
from aethermind.engine.process.messages import Abort, Add, Ask, Forget, Loaded, News, Reply, Setup
from aethermind.engine.process.model_face import ModelFace
from aethermind.engine.process.supervisor import RestartPolicy, Supervisor
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.serving.engine_client import EngineClient
from aethermind.errors import EngineDeadError
from aethermind.runtime import Runtime

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.engine.requests.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["EngineProcess"]

_DEFAULT_POLICY = RestartPolicy()


class EngineProcess(EngineClient):
    """Requests from the tasks of one event loop, answered by an engine that may crash without harm to anything else.

    async with EngineProcess("demo", EngineConfig(num_threads=2)) as engine:
        async for output in engine.generate(await engine.read("Once upon a time"), SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    When its process ends, every open request ends with EngineDeadError, and so does every new one until another
    process serves, which `RestartPolicy` says when to start. Entering raises what keeps the model from being loaded.
    """

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig,
        *,
        runtime: Runtime | None = None,
        policy: RestartPolicy = _DEFAULT_POLICY,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`runtime` is what is installed, for the side of the model that stays in this process."""
        super().__init__()
        self._model, self._tokenizer = str(model), config.tokenizer
        self._runtime = runtime
        self._face: ModelFace | None = None
        self._handles: dict[str, int] = {}
        self._growing: dict[int, tuple[str, GrowingOutput]] = {}
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._on_progress = on_progress
        self._loaded: Loaded | None = None
        self._stats: EngineStats | None = None
        self._supervisor = Supervisor(
            Setup(self._model, config, logging.getLogger("aethermind").getEffectiveLevel()),
            policy,
            on_news=self._take,
            on_up=self._come_up,
            on_down=self._go_down,
            is_busy=lambda: bool(self._growing or self._asked),
        )

    async def __aenter__(self) -> EngineProcess:
        try:
            _, self._face = await asyncio.gather(self._supervisor.start(), asyncio.to_thread(self._open_face))
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def face(self) -> ModelFace:
        """What this process knows of the model; only once the engine was started."""
        assert self._face is not None, "not started"
        return self._face

    @property
    def loaded(self) -> Loaded:
        """What the engine's process says of the model; only once the engine was started."""
        assert self._loaded is not None, "not started"
        return self._loaded

    @property
    def pid(self) -> int | None:
        """The id of the engine's process, None while there is none."""
        return self._supervisor.pid

    @property
    def stats(self) -> EngineStats:
        """What the engine did when it last spoke: some milliseconds ago while it works, else within a second."""
        assert self._stats is not None, "not started"
        return self._stats

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
            handle = next(self._numbers)
            asked = replace(read, token_ids=list(read.token_ids))
            self._supervisor.send(Add(handle, name, asked, params, options, hold_s))
            self._handles[name] = handle
            self._growing[handle] = (name, GrowingOutput(name, read))

        return self._requests.follow(request_id, add, self._forget, timeout_s=timeout_s)

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids, read in this process; `generate` takes either."""
        return await self.face.prompts.read_beside(prompt)

    async def close(self) -> None:
        """End the process after the step under way; requests that are open end with EngineDeadError."""
        await self._supervisor.close()
        closed = EngineDeadError("The engine was closed before the request was finished.")
        self._end_all(self._requests.failure or closed)

    def _open_face(self) -> ModelFace:
        return ModelFace.open(self._runtime or Runtime.boot(), self._model, self._tokenizer)

    async def _ask(self, what: str, **arguments: Any) -> Any:
        """Have one of `CALLS` called between two steps; returns or raises what it does."""
        if self._requests.failure is not None:
            raise self._requests.failure
        number = next(self._numbers)
        self._supervisor.send(Ask(number, what, arguments))
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            return await answer
        finally:
            del self._asked[number]

    def _abort(self, name: str) -> None:
        if (handle := self._handles.get(name)) is not None:
            self._supervisor.send(Abort(handle))

    def _forget(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            del self._growing[handle]
            self._supervisor.send(Forget(handle))

    def _take(self, news: News) -> None:
        if news.progress is not None and self._on_progress is not None and self._loaded is None:
            self._on_progress(*news.progress)
        if news.stats is not None:
            self._stats = news.stats
        for reply in news.replies or ():
            self._take_reply(reply)
        for handle, error in news.refused or ():
            if handle in self._growing:
                self._requests.deliver(self._growing[handle][0], error)
        for handle, *state in news.states or ():
            if handle in self._growing:
                self._take_state(handle, state)

    def _take_reply(self, reply: Reply) -> None:
        answer = self._asked.get(reply.number)
        if answer is None or answer.done():
            return
        if reply.error is None:
            self._supervisor.vouch()
            answer.set_result(reply.value)
        else:
            answer.set_exception(reply.error)

    def _take_state(self, handle: int, state: list[Any]) -> None:
        name, growing = self._growing[handle]
        output = growing.grow(state)
        if output.finished:
            del self._growing[handle], self._handles[name]
            if output.outputs[0].finish_reason != "abort":
                self._supervisor.vouch()
        self._requests.deliver(name, output)

    def _come_up(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._requests.failure = None

    def _go_down(self, failure: EngineDeadError) -> None:
        if self._stats is not None:
            blocks = self._stats.num_blocks
            self._stats = replace(
                self._stats,
                num_waiting=0,
                num_running=0,
                num_free_blocks=blocks,
                num_swapped_blocks=0,
                memory_pressure=0.0,
            )
        self._end_all(failure)

    def _end_all(self, failure: EngineDeadError) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(failure)
        self._requests.fail(failure)
