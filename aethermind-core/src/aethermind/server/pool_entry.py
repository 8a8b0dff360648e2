"""A model of the pool: its state, its requests, and what clients see of it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.server.model_source import ModelSource
    from aethermind.server.served_model import ServedModel

__all__ = ["ModelState", "ModelStatus", "PoolEntry"]


class ModelState(StrEnum):
    """The state of a model; the values are llama.cpp's, with `unloading` and `failed` besides."""

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
    num_bytes: int
    max_model_len: int
    adapters: tuple[str, ...]


class PoolEntry:
    """A model of the pool. Mutable.

    `added_adapters` were loaded while it ran, by name with their paths, and `removed_adapters` were unloaded.
    `models` are the loaded model and its adapters by name, `waiters` the requests that wait for it, `unloaded` is done
    when an administrator's request to unload it is carried out.
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

    def adopt(self, model: ServedModel) -> None:
        """Take the model of an engine that was opened. It serves requests once `mark_loaded` was called."""
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
        started = (name for name in self.source.adapters if name not in self.removed_adapters)
        return tuple(dict.fromkeys([*started, *self.added_adapters]))

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.source.name

    @property
    def base(self) -> ServedModel:
        """The loaded model itself, without adapter."""
        return self.models[self.name]

    @property
    def takes_place(self) -> bool:
        """Whether it takes one of the places for loaded models."""
        return self.state in (ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADING)

    @property
    def is_evictable(self) -> bool:
        """Whether it is loaded and may be unloaded."""
        return self.state is ModelState.LOADED and not self.source.is_pinned

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and no request uses it."""
        return self.state is ModelState.LOADED and not self.num_leases

    @property
    def is_dead(self) -> bool:
        """Whether its engine failed, and nothing but loading it again helps."""
        return self.is_evictable and self.base.engine.failure is not None

    def status(self) -> ModelStatus:
        """What clients see."""
        is_idle = self.is_idle and self.idle_since_s is not None
        idle_s = asyncio.get_running_loop().time() - (self.idle_since_s or 0.0) if is_idle else None
        is_broken = self.state is ModelState.FAILED
        return ModelStatus(
            self.name,
            self.state,
            self.progress if self.state is ModelState.LOADING else None,
            self.failure if is_broken else None,
            self.loaded_at,
            idle_s,
            self.num_leases + len(self.waiters),
            self.num_loads,
            self.num_bytes,
            self.max_model_len,
            self.adapters,
        )
