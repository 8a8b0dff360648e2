"""A model of the pool: how it is opened, its state, the requests that use it, and its status for clients."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.process import RestartPolicy
    from aethermind.engine.process.supervisor import LaunchProcess
    from aethermind.runtime import Runtime
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = [
    "ModelSource",
    "ModelState",
    "ModelStatus",
    "OpenModel",
    "PoolEntry",
    "ProgressCallback",
    "engine_inprocess",
    "engine_process",
    "is_loading",
]

_LOADING_RETRY_S = 5
"""`Retry-After` of requests for a model that is loaded while the server listens."""

ProgressCallback = Callable[[int, int], None]
"""Receives the progress of loading: the units that are done, and their total."""

OpenModel = Callable[[ProgressCallback], "AbstractAsyncContextManager[ServedModel]"]
"""Returns a context that loads a model when it is entered, and unloads it when it is left."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model by the name that clients use.

    Attributes:
        open: returns a context that loads the model (see `OpenModel`). Raises the errors of loading a model.
        adapters: the names of its LoRA adapters, which clients use like models.
        max_model_len: the context length as far as it is known before loading, in tokens.
        estimate: returns the memory that it will take in bytes, before it is loaded for the first time; a thread calls
            it. Raises the errors of loading a model.
        ttl_s: seconds without a request after which it is unloaded; None for never.
        loads_at_start: whether the server loads it before it accepts requests.
        is_pinned: whether it is never unloaded while the server runs. No request loads it.
    """

    name: str
    open: OpenModel
    adapters: tuple[str, ...] = ()
    max_model_len: int = 0
    estimate: Callable[[], int] | None = None
    ttl_s: float | None = None
    loads_at_start: bool = False
    is_pinned: bool = False


def engine_process(
    name: str,
    model: str,
    config: EngineConfig,
    *,
    policy: RestartPolicy,
    runtime: Runtime,
    chat_template: ChosenTemplate | None = None,
    launch: LaunchProcess | None = None,
) -> OpenModel:
    """Run the model in an engine process, which `launch` starts (see `EngineProcess`).

    With `launch` the model is loaded on demand, so that its vocabulary is mapped.
    """

    @asynccontextmanager
    async def opened(on_progress: ProgressCallback) -> AsyncIterator[ServedModel]:
        from aethermind.engine.process import EngineProcess
        from aethermind.server.served_model import ServedModel

        engine = EngineProcess(
            model,
            config,
            runtime=runtime,
            policy=policy,
            on_progress=on_progress,
            launch=launch,
            maps_vocabulary=launch is not None,
        )
        async with engine:
            served = ServedModel.of_process(name, engine)
            if chat_template is not None:
                served = served.with_chat_template(chat_template)
            yield served.with_checked_calls()

    return opened


def engine_inprocess(
    name: str, model: str, config: EngineConfig, *, runtime: Runtime, chat_template: ChosenTemplate | None = None
) -> OpenModel:
    """Run the model in this process; threads load and close it."""

    @asynccontextmanager
    async def opened(on_progress: ProgressCallback) -> AsyncIterator[ServedModel]:
        from aethermind.engine.serving.async_engine import AsyncEngine
        from aethermind.llm import LLM
        from aethermind.server.served_model import ServedModel

        options = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
        llm = await asyncio.to_thread(partial(LLM, model, runtime=runtime, on_progress=on_progress, **options))
        try:
            async with AsyncEngine(llm.engine) as engine:
                served = ServedModel.of(name, llm, engine)
                if chat_template is not None:
                    served = served.with_chat_template(chat_template)
                yield served.with_checked_calls()
        finally:
            await asyncio.to_thread(llm.close)

    return opened


class ModelState(StrEnum):
    """The state of a model. The values are those of llama.cpp's router, and `unloading` and `failed`."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model as clients see it.

    Attributes:
        progress: the fraction of loading that is done; None unless it is being loaded and reports that.
        error: why it could not be loaded, if it is `failed`.
        loaded_at: when it was loaded, in seconds since the epoch; None while it is not loaded.
        idle_s: seconds since its last request ended or it was loaded; None while it is not loaded or has requests.
        num_requests: requests that use it or wait for it.
        num_loads: how often it was loaded.
        ttl_s: seconds without a request after which it is unloaded; None for never.
        num_bytes: the memory that it takes, as estimated before it is loaded or from its plan after; 0 if unknown.
    """

    name: str
    state: ModelState
    progress: float | None
    error: str | None
    loaded_at: float | None
    idle_s: float | None
    num_requests: int
    num_loads: int
    ttl_s: float | None
    num_bytes: int
    max_model_len: int
    adapters: tuple[str, ...]


def is_loading(status: ModelStatus) -> ApiError:
    """The error of requests for a model that is loaded while the server listens."""
    done = "" if status.progress is None else f" ({status.progress:.0%})"
    return ApiError(
        503,
        f"The model {status.name} is being loaded{done}. Try again later.",
        code="model_loading",
        retry_after_s=_LOADING_RETRY_S,
    )


class PoolEntry:
    """A model of the pool. Mutable.

    Attributes:
        models: the loaded model and its adapters, by name; empty while it is not loaded.
        context: the context of `source.open` while the model is loaded; leaving it unloads the model.
        task: the task that loads or unloads the model.
        num_leases: the requests that use the model.
        waiters: futures of the requests that wait for the model, done when it is leased to them.
        waiting_since_s: when the first of them began to wait. Times in `_s` are those of the event loop.
        loaded_s, idle_since_s: when the model was loaded, and when its last request ended.
        ttl_timer: unloads the model when its TTL is over.
        num_failures, retry_at_s: failed loads in a row, and the time before which no other is tried.
        unloaded: done when an administrator's request to unload the model is carried out; None without such a request.
        added_adapters, removed_adapters: adapters loaded while the server runs, by name with their paths, and the
            names of those that were unloaded.
    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.state = ModelState.UNLOADED
        self.models: dict[str, ServedModel] = {}
        self.context: AbstractAsyncContextManager[ServedModel] | None = None
        self.task: asyncio.Task[None] | None = None
        self.num_leases = 0
        self.num_loads = 0
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.waiting_since_s = 0.0
        self.loaded_s = 0.0
        self.loaded_at: float | None = None
        self.idle_since_s: float | None = None
        self.ttl_timer: asyncio.TimerHandle | None = None
        self.progress: float | None = None
        self.failure: str | None = None
        self.num_failures = 0
        self.retry_at_s = -inf
        self.num_bytes = 0
        self.max_model_len = source.max_model_len
        self.unloaded: asyncio.Future[None] | None = None
        self.added_adapters: dict[str, str] = {}
        self.removed_adapters: set[str] = set()

    def set_model(self, model: ServedModel) -> None:
        """Set the model of an engine that was opened. It serves requests once `mark_loaded` was called."""
        self.models = {served.name: served for served in model.with_adapters()}
        self.max_model_len = model.info.max_model_len
        info = model.info
        self.num_bytes = self.num_bytes or info.weight_bytes + info.kv_cache_bytes + info.arena_bytes

    def mark_loaded(self) -> None:
        """Note that the model and its adapters are loaded."""
        self.state = ModelState.LOADED
        self.failure = None
        self.num_loads += 1
        self.loaded_at = time.time()

    def add_adapter(self, name: str, path: str) -> None:
        """Note that an adapter was loaded."""
        self.models[name] = replace(self.base, name=name, parent=self.name)
        self.added_adapters[name] = path
        self.removed_adapters.discard(name)

    def remove_adapter(self, name: str) -> None:
        """Note that an adapter was unloaded."""
        self.models.pop(name, None)
        self.added_adapters.pop(name, None)
        self.removed_adapters.add(name)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of its adapters, whether it is loaded or not."""
        configured = (name for name in self.source.adapters if name not in self.removed_adapters)
        return tuple(dict.fromkeys([*configured, *self.added_adapters]))

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.source.name

    @property
    def base(self) -> ServedModel:
        """The loaded model itself, without adapter."""
        return self.models[self.name]

    @property
    def is_resident(self) -> bool:
        """Whether its memory is in use, so that it counts against the limits of the pool."""
        return self.state in (ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADING)

    @property
    def is_evictable(self) -> bool:
        """Whether it is loaded and may be unloaded."""
        return self.state is ModelState.LOADED and not self.source.is_pinned

    @property
    def is_starting(self) -> bool:
        """Whether it is one that always runs, and is not loaded yet."""
        return self.source.is_pinned and self.state in (ModelState.UNLOADED, ModelState.LOADING)

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and no request uses it."""
        return self.state is ModelState.LOADED and not self.num_leases

    @property
    def has_failed_engine(self) -> bool:
        """Whether its engine failed, so that the model has to be loaded again."""
        return self.is_evictable and self.base.engine.failure is not None

    def status(self) -> ModelStatus:
        """What clients see."""
        is_idle = self.is_idle and self.idle_since_s is not None
        idle_s = asyncio.get_running_loop().time() - (self.idle_since_s or 0.0) if is_idle else None
        has_failed = self.state is ModelState.FAILED
        return ModelStatus(
            self.name,
            self.state,
            self.progress if self.state is ModelState.LOADING else None,
            self.failure if has_failed else None,
            self.loaded_at,
            idle_s,
            self.num_leases + len(self.waiters),
            self.num_loads,
            self.source.ttl_s,
            self.num_bytes,
            self.max_model_len,
            self.adapters,
        )
