"""A model that a server can load: its name, how it is opened, and what is known of it before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.process import RestartPolicy
    from aethermind.engine.process.supervisor import LaunchProcess
    from aethermind.runtime import Runtime
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["ModelSource", "OpenModel", "ProgressCallback", "engine_inprocess", "engine_process"]

ProgressCallback = Callable[[int, int], None]
"""Receives the progress of loading: done, total."""

OpenModel = Callable[[ProgressCallback], "AbstractAsyncContextManager[ServedModel]"]
"""Returns a context that loads a model when it is entered, and unloads it when it is left."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model by the name that clients use.

    Attributes:
        open: loads and unloads it. Errors are those of loading a model.
        adapters: the names of its LoRA adapters, which clients use like models.
        max_model_len: the context length as far as it is known before loading, in tokens.
        estimate: returns the memory that it will take in bytes, before it is loaded for the first time; a thread calls
            it. Errors are those of loading a model.
        ttl_s: seconds without a request after which it is unloaded; None is never.
        loads_at_start: whether the server loads it before it accepts requests.
        is_pinned: whether it is never unloaded while the server runs.
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
    """Run the model in an engine process, which `launch` starts (see `EngineProcess`)."""

    @asynccontextmanager
    async def opened(on_progress: ProgressCallback) -> AsyncIterator[ServedModel]:
        from aethermind.engine.process import EngineProcess
        from aethermind.server.served_model import ServedModel

        engine = EngineProcess(model, config, runtime=runtime, policy=policy, on_progress=on_progress, launch=launch)
        async with engine:
            served = ServedModel.of_process(name, engine)
            yield served if chat_template is None else served.with_chat_template(chat_template)

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
                yield served if chat_template is None else served.with_chat_template(chat_template)
        finally:
            await asyncio.to_thread(llm.close)

    return opened
