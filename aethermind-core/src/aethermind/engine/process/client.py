"""The client of an engine that runs in its own process."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.engine.process.protocol import (
    Abort,
    Add,
    EngineOutputs,
    Forget,
    Loaded,
    Setup,
    UtilityCall,
    UtilityResult,
    decode_delta,
)
from aethermind.engine.process.supervisor import LaunchProcess, RestartPolicy, Supervisor
from aethermind.engine.requests.prompt_reader import PromptReader
from aethermind.engine.serving.engine_client import EngineClient
from aethermind.errors import EngineDeadError
from aethermind.model.hub import hub_name
from aethermind.plugins.compatibility import deprecated
from aethermind.runtime import Runtime
from aethermind.text.answer_format import AnswerFormat

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.model.input_processor import InputProcessor
    from aethermind.sampling.params import SamplingParams
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["EngineProcess", "TokenizerFrontend"]

_DEFAULT_POLICY = RestartPolicy()


class EngineProcess(EngineClient):
    """An engine in a child process, for the tasks of an event loop. A crash of the engine leaves this process intact.

    async with EngineProcess("demo", EngineConfig(num_threads=2)) as engine:
        async for output in engine.generate(await engine.read("Once upon a time"), SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    When the child process ends, every open request fails with EngineDeadError, and so does every new one until the
    restarted process is ready (see `RestartPolicy`). Entering raises the error that prevents loading the model.
    """

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig,
        *,
        runtime: Runtime | None = None,
        policy: RestartPolicy = _DEFAULT_POLICY,
        on_progress: Callable[[int, int], None] | None = None,
        launch: LaunchProcess | None = None,
        maps_vocabulary: bool = False,
    ) -> None:
        """`runtime` holds the installed packages, from which this process opens the model's tokenizer. `launch` starts
        the process, such as `StandbyProcess.launch`. With `maps_vocabulary` the tokenizer's cached tables are used
        until much text has been encoded, which opens it faster. Otherwise its vocabulary is read at start.
        """
        super().__init__()
        self._model, self._tokenizer = str(model), config.tokenizer
        self._runtime = runtime
        self._maps_vocabulary = maps_vocabulary
        self._frontend: TokenizerFrontend | None = None
        self._handles: dict[str, int] = {}
        """The handle of each open request, by its name (request id)."""
        self._names: dict[int, str] = {}
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._on_progress = on_progress
        self._loaded: Loaded | None = None
        self._stats: EngineStats | None = None
        self._adjusted_limits: dict[str, int | None] | None = None
        self._added_adapters: dict[str, str] = {}
        self._removed_adapters: set[str] = set()
        self._supervisor = Supervisor(
            Setup(self._model, config, logging.getLogger("aethermind").getEffectiveLevel()),
            policy,
            on_outputs=self._receive,
            on_up=self._on_up,
            on_down=self._on_down,
            is_busy=lambda: bool(self._names or self._calls),
            launch=launch,
        )

    async def __aenter__(self) -> EngineProcess:
        try:
            start = self._supervisor.start()
            if await asyncio.to_thread(self._is_missing):
                await start  # the process downloads the model, and this one finds it in the cache
                self._frontend = await asyncio.to_thread(self._open_frontend)
            else:
                _, self._frontend = await asyncio.gather(start, asyncio.to_thread(self._open_frontend))
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def frontend(self) -> TokenizerFrontend:
        """The tokenizer and prompt reader of the model, in this process. Available once the engine is started."""
        assert self._frontend is not None, "not started"
        return self._frontend

    @property
    def face(self) -> TokenizerFrontend:
        """The deprecated name of `frontend`."""
        deprecated("EngineProcess.face", instead="EngineProcess.frontend", until="0.4.0")
        return self.frontend

    @property
    def loaded(self) -> Loaded:
        """Facts about the loaded model. Available once the engine is started."""
        assert self._loaded is not None, "not started"
        return self._loaded

    @property
    def pid(self) -> int | None:
        """The id of the engine's process, None while there is none."""
        return self._supervisor.pid

    @property
    def stats(self) -> EngineStats:
        """The latest statistics that the process has sent: at most a second old."""
        assert self._stats is not None, "not started"
        return self._stats

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """Tokenize a prompt in this process; `generate` takes either form."""
        return await self.frontend.prompts.read_beside(prompt)

    async def adjust(self, **limits: int | None) -> dict[str, int | None]:
        """Change the limits of later steps, and return all by name; a restarted process keeps them."""
        self._adjusted_limits = adjusted = await super().adjust(**limits)
        self._stats = replace(self.stats, **adjusted)  # type: ignore[arg-type]  # names of fields
        return adjusted

    async def load_adapter(self, name: str, path: str) -> list[str]:
        """Load a LoRA adapter (see `Engine.load_adapter`); a restarted process loads it again."""
        names = await super().load_adapter(name, path)
        self._added_adapters[name] = path
        return names

    async def unload_adapter(self, name: str) -> list[str]:
        """Unload a LoRA adapter (see `Engine.unload_adapter`)."""
        names = await super().unload_adapter(name)
        self._removed_adapters.add(name)
        self._added_adapters.pop(name, None)
        return names

    async def close(self) -> None:
        """End the process after the current step; open requests fail with EngineDeadError."""
        await self._supervisor.close()
        closed = EngineDeadError("The engine was closed before the request was finished.")
        self._end_all(self._requests.failure or closed)

    def _is_missing(self) -> bool:
        if hub_name(self._model) is None:
            return False
        self._runtime = self._runtime or Runtime.boot()
        return self._runtime.models.is_missing(self._model)

    def _open_frontend(self) -> TokenizerFrontend:
        frontend = TokenizerFrontend.open(self._runtime or Runtime.boot(), self._model, self._tokenizer)
        if not self._maps_vocabulary:
            frontend.tokenizer.load_library_tokenizer()  # now, because no other thread runs while it is read
        return frontend

    async def _call_utility(self, method: str, **arguments: Any) -> Any:
        """Call one of `UTILITY_METHODS` of the engine between two steps; returns its result or raises its error."""
        if self._requests.failure is not None:
            raise self._requests.failure
        number = next(self._numbers)
        self._supervisor.send(UtilityCall(number, method, arguments))
        self._calls[number] = result = asyncio.get_running_loop().create_future()
        try:
            return await result
        finally:
            del self._calls[number]

    async def _add(
        self,
        name: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        options: RequestOptions | None,
        hold_s: float,
    ) -> None:
        handle = next(self._numbers)
        plain = replace(prompt, token_ids=list(prompt.token_ids))
        self._supervisor.send(Add(handle, name, plain, params, options, hold_s))
        self._handles[name] = handle
        self._names[handle] = name

    def _abort(self, name: str) -> None:
        if (handle := self._handles.get(name)) is not None:
            self._supervisor.send(Abort(handle))

    def _forget(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            del self._names[handle]
            self._supervisor.send(Forget(handle))

    def _receive(self, outputs: EngineOutputs) -> None:
        if outputs.progress is not None and self._on_progress is not None and self._loaded is None:
            self._on_progress(*outputs.progress)
        if outputs.stats is not None:
            self._stats = outputs.stats
        for result in outputs.results or ():
            self._take_result(result)
        for handle, error in outputs.refused or ():
            if (name := self._names.get(handle)) is not None:
                self._requests.deliver(name, error)
        for handle, *values in outputs.deltas or ():
            if (name := self._names.get(handle)) is not None:
                self._take_delta(handle, decode_delta(name, values))

    def _take_delta(self, handle: int, delta: OutputDelta) -> None:
        name = delta.request_id
        if delta.finished:
            del self._names[handle], self._handles[name]
            if any(completion.finish_reason not in (None, "abort") for completion in delta.completions):
                self._supervisor.mark_healthy()
        self._requests.deliver(name, delta)

    def _take_result(self, result: UtilityResult) -> None:
        waiting = self._calls.get(result.number)
        if waiting is None or waiting.done():
            return
        if result.error is None:
            self._supervisor.mark_healthy()
            waiting.set_result(result.value)
        else:
            waiting.set_exception(result.error)

    def _on_up(self, loaded: Loaded) -> None:
        self._loaded = loaded
        if self._adjusted_limits is not None:  # a restarted engine begins with the limits of its configuration
            self._supervisor.send(UtilityCall(next(self._numbers), "adjust", self._adjusted_limits))
        for name in self._removed_adapters.intersection(
            loaded.info.adapters
        ):  # and with the adapters of its configuration
            self._supervisor.send(UtilityCall(next(self._numbers), "unload_adapter", {"name": name}))
        for name, path in self._added_adapters.items():
            self._supervisor.send(UtilityCall(next(self._numbers), "load_adapter", {"name": name, "path": path}))
        self._requests.failure = None

    def _on_down(self, failure: EngineDeadError) -> None:
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
        for result in self._calls.values():
            if not result.done():
                result.set_exception(failure)
        self._requests.fail(failure)


@dataclass(frozen=True, slots=True)
class TokenizerFrontend:
    """The part of a model that needs no weights: tokenizer, prompt reader and answer format, for a server's process."""

    tokenizer: Tokenizer
    prompts: PromptReader
    answer_format: AnswerFormat

    @classmethod
    def open(cls, runtime: Runtime, model: str | Path, tokenizer: str | None = None) -> TokenizerFrontend:
        """Read the configuration and the tokenizer, the model's or the one at `tokenizer`. Weights are not read.

        Raises ConfigError and TokenizerError.
        """
        source = runtime.open_source(model, tokenizer)
        raw = source.config()
        architecture = runtime.architectures.resolve_name(raw, source.path)
        read_tokenizer = source.tokenizer()
        factory = runtime.input_processors.find(architecture)

        def open_processor() -> InputProcessor | None:
            return None if factory is None else factory.create(raw, source.weights())

        prompts = PromptReader(read_tokenizer, architecture, open_processor, text_limit=source.text_limit())
        return cls(read_tokenizer, prompts, runtime.answer_formats.find(architecture) or AnswerFormat())
