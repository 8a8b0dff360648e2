"""The models of a server: loaded at first use, and unloaded when they are idle or others need their memory.

A request leases its model until its response ends. A leased model is never unloaded. Requests for models that are not
loaded wait in a queue, in order of arrival, so that none starves:

    unloaded ── first request ──► loading ──► loaded ── idle, and evicted or past its TTL ──► unloading ──► unloaded
                                     └─ error ──► failed ── request after a back-off ──► loading

A server may also load models while it listens, which are never unloaded; requests do not wait for these.

A model that does not fit within the limits of the pool evicts the least recently used idle model. If none is idle for
`DRAIN_AFTER_S`, the model that was loaded first is drained: new requests for it wait in the queue, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.errors import AetherMindError, InvalidArgumentError, describe_exception
from aethermind.log import get_logger
from aethermind.server.access import LOAD_ADAPTER
from aethermind.server.openai.errors import ApiError, draining
from aethermind.server.pool_entry import ModelSource, ModelState, ModelStatus, PoolEntry, is_loading

if TYPE_CHECKING:
    from aethermind.server.pool_entry import ProgressCallback
    from aethermind.server.served_model import ServedModel

__all__ = ["DRAIN_AFTER_S", "ModelPool", "ModelState", "ModelStatus"]

DRAIN_AFTER_S = 1.0
"""Seconds for which a request waits for an idle model to be evicted before a busy one is drained."""

FIRST_BACKOFF_S = 1.0
"""Seconds until a model that could not be loaded is tried again. They double with each failure in a row."""

MAX_BACKOFF_S = 60.0

_log = get_logger(__name__)


class ModelPool:
    """Named models, of which at most `max_loaded` are loaded at once, and at most `max_bytes` of memory.

    For the tasks of one event loop: `async with pool` loads the models that load at start, unless the server calls
    `load_at_start` while it listens, and unloads all at the end. Mutable.
    """

    def __init__(
        self,
        sources: Iterable[ModelSource],
        *,
        max_loaded: int | None = None,
        max_bytes: int | None = None,
        load_timeout_s: float = 600.0,
        background: AbstractAsyncContextManager[Any] | None = None,
        loads_while_listening: bool = False,
    ) -> None:
        """A request waits for its model for `load_timeout_s` seconds at most. `background` is a context that is open
        while the pool is open. `loads_while_listening` leaves `load_at_start` to the server.

        InvalidArgumentError if two models or adapters have the same name, or if more models load at start than may be
        loaded.
        """
        self._entries: dict[str, PoolEntry] = {}
        self._owners: dict[str, PoolEntry] = {}
        self._lost_adapters: dict[str, str] = {}
        """Why an adapter that clients loaded is not served any more, by its name."""
        for source in sources:
            entry = self._entries[source.name] = PoolEntry(source)
            for name in (source.name, *source.adapters):
                self._register_name(name, entry)
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._load_timeout_s = load_timeout_s
        self._background = background
        self.loads_while_listening = loads_while_listening
        self._queue: deque[PoolEntry] = deque()
        self._draining: PoolEntry | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._resources = AsyncExitStack()
        num_at_start = sum(entry.source.loads_at_start for entry in self._entries.values())
        if max_loaded is not None and num_at_start > max_loaded:
            raise InvalidArgumentError(
                f"{num_at_start} models are to be loaded at start, and {max_loaded} may be loaded at once. Raise "
                "--models-max."
            )

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> ModelPool:
        """A pool of models that are loaded already, and belong to the caller."""
        served = list(models)
        pool = cls(
            ModelSource(model.name, partial(_already_loaded, model), model.info.adapters, is_pinned=True)
            for model in served
        )
        for model in served:
            pool._entries[model.name].set_model(model)
            pool._entries[model.name].mark_loaded()
        return pool

    def _register_name(self, name: str, entry: PoolEntry) -> None:
        if name in self._owners:
            raise InvalidArgumentError(
                f"Two models are called {name!r:.80}; give the adapter another name by NAME=PATH."
            )
        self._owners[name] = entry

    async def __aenter__(self) -> ModelPool:
        try:
            if self._background is not None:
                await self._resources.enter_async_context(self._background)
            if not self.loads_while_listening:
                await self.load_at_start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def load_at_start(self) -> None:
        """Load the models that load at start, one after the other. Raises the errors of loading a model."""
        for entry in self._entries.values():
            if entry.source.loads_at_start:
                await self._open(entry)

    # -- status -------------------------------------------------------------------------------------------------------

    @property
    def base_models(self) -> tuple[ServedModel, ...]:
        """The models that are loaded now, without their adapters."""
        return tuple(entry.base for entry in self._entries.values() if entry.state is ModelState.LOADED)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, without adapters."""
        return tuple(self._entries)

    @property
    def failure(self) -> str | None:
        """The first engine that is down among those that always run, and why; None while they all run."""
        for entry in self._entries.values():
            if entry.source.is_pinned and entry.state is ModelState.LOADED:
                failure = entry.base.engine.failure
                if failure is not None:
                    return f"{entry.name}: {failure}"
        return None

    @property
    def loading(self) -> ModelStatus | None:
        """The first of the models that always run that is not loaded yet; None once all are."""
        return next((entry.status() for entry in self._entries.values() if entry.is_starting), None)

    def statuses(self) -> Iterator[ModelStatus]:
        """The status of each model."""
        return (entry.status() for entry in self._entries.values())

    def status(self, name: str) -> ModelStatus:
        """The status of the model with this name, or of an adapter's model; ApiError 404 lists the names."""
        return self._owner(name).status()

    # -- requests -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[ServedModel]:
        """The model or adapter with this name, which is not unloaded while the context is open. Loads it if necessary.

        ApiError 404 lists the names. ApiError 503 says why the model cannot be used now, and when to try again.
        """
        entry = self._owner(name)
        await self._acquire(entry)
        try:
            model = entry.models.get(name)
            if model is None:  # an adapter that was removed meanwhile
                raise self._unknown(name)
            yield model
        finally:
            self._release(entry)

    async def load(self, name: str) -> None:
        """Load a model, if it is not loaded. Errors are those of `lease`."""
        async with self.lease(name):
            pass

    async def unload(self, name: str) -> None:
        """Unload a model as soon as its requests have ended; requests that arrive later load it again.

        ApiError 404 for an unknown name, 409 for a model that is never unloaded.
        """
        entry = self._owner(name)
        if entry.source.is_pinned:
            raise ApiError(
                409,
                f"{entry.name} is loaded as long as the server runs. Start the server with --models-max or --model-ttl "
                "to load models on demand.",
                param="model",
                code="model_pinned",
            )
        if not entry.is_resident:
            return
        if entry.unloaded is None:
            entry.unloaded = asyncio.get_running_loop().create_future()
        self._schedule()
        await asyncio.shield(entry.unloaded)

    async def load_adapter(self, name: str, adapter: str, path: str) -> None:
        """Load a LoRA adapter of the model `name`, which clients use like a model.

        ApiError 400 for a name that is taken, and the errors of `EngineClient.load_adapter`.
        """
        if adapter in self._owners:
            raise ApiError(400, f"There is a model or an adapter {adapter!r:.100} already.", param="lora_name")
        if (found := env.expand_home(path)).exists():
            path = str(found.absolute())  # it remains a path, even if it is gone when the model is loaded again
        entry = self._owner(name)
        self._owners[adapter] = entry  # before the adapter is loaded, so that no other request takes the name
        try:
            async with self.lease(name) as model:
                await model.engine.load_adapter(adapter, path)
                entry.add_adapter(adapter, path)
                self._lost_adapters.pop(adapter, None)
        except BaseException:
            del self._owners[adapter]
            raise

    async def unload_adapter(self, adapter: str) -> None:
        """Unload a LoRA adapter; open requests finish with it. ApiError 404 for an unknown one."""
        entry = self._owner(adapter)
        if adapter == entry.name:
            raise ApiError(404, f"{adapter!r:.100} is a model and not an adapter.", param="lora_name")
        async with self.lease(entry.name) as model:
            await model.engine.unload_adapter(adapter)
            entry.remove_adapter(adapter)
            self._owners.pop(adapter, None)

    def fail_waiting_requests(self) -> None:
        """Fail the requests that wait for a model, and all new ones: the server stops."""
        self._is_closed = True
        for entry in self._entries.values():
            self._fail_waiters(entry, draining)

    async def close(self) -> None:
        """Unload all models; requests that wait for one fail."""
        self.fail_waiting_requests()
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for entry in self._entries.values():
            if entry.task is not None and entry.state is ModelState.LOADING:
                entry.task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        loaded = [entry for entry in self._entries.values() if entry.state is ModelState.LOADED]
        await asyncio.gather(*(self._unload(entry) for entry in loaded))
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        await self._resources.aclose()

    # -- leases -------------------------------------------------------------------------------------------------------

    def _owner(self, name: str) -> PoolEntry:
        """The model with this name, or the model of the adapter with this name."""
        if name not in self._owners:
            raise self._unknown(name)
        return self._owners[name]

    def _unknown(self, name: str) -> ApiError:
        if (reason := self._lost_adapters.get(name)) is not None:
            return ApiError(404, reason, param="model", code="model_not_found")
        return ApiError(
            404,
            f"There is no model {name!r:.100}; this server has {', '.join(self._owners)}.",
            param="model",
            code="model_not_found",
        )

    async def _acquire(self, entry: PoolEntry) -> None:
        """Wait until a model is loaded, and count a lease."""
        if self._is_closed:
            raise draining()
        if entry.is_starting:
            raise is_loading(entry.status())
        if entry.has_failed_engine and entry.unloaded is None:
            self._unload_failed(entry)
        now = asyncio.get_running_loop().time()
        if entry.failure is not None and now < entry.retry_at_s:
            raise _load_failed(entry, now)
        if self._max_bytes is not None and not entry.num_bytes and entry.source.estimate is not None:
            await self._estimate(entry, entry.source.estimate)
        is_open = entry is not self._draining and entry.unloaded is None and not entry.waiters
        if entry.state is ModelState.LOADED and is_open:
            self._count_lease(entry)
            return
        waiter = asyncio.get_running_loop().create_future()
        if not entry.waiters:
            entry.waiting_since_s = now
        entry.waiters.append(waiter)
        if entry.state is not ModelState.LOADING and entry not in self._queue:
            self._queue.append(entry)
        self._schedule()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(entry)
            elif waiter in entry.waiters:
                entry.waiters.remove(waiter)
                self._schedule()
            if isinstance(error, TimeoutError):
                raise self._timed_out(entry) from None
            raise

    async def _estimate(self, entry: PoolEntry, estimate: Callable[[], int]) -> None:
        """Estimate the memory of a model. ApiError 503 if it cannot be loaded."""
        try:
            entry.num_bytes = await asyncio.to_thread(estimate)
        except Exception as error:
            self._fail(entry, _reason_of(error))
            raise _load_failed(entry, asyncio.get_running_loop().time()) from None
        if self._is_closed:
            raise draining()

    def _timed_out(self, entry: PoolEntry) -> ApiError:
        reason = "all loaded models were busy" if entry.state is not ModelState.LOADING else "it is still being loaded"
        return ApiError(
            503,
            f"The model {entry.name} was not loaded after {self._load_timeout_s:g} s: {reason}. Try again later.",
            code="model_loading",
            retry_after_s=ceil(DRAIN_AFTER_S),
        )

    def _count_lease(self, entry: PoolEntry) -> None:
        entry.num_leases += 1
        if entry.ttl_timer is not None:
            entry.ttl_timer.cancel()
            entry.ttl_timer = None

    def _release(self, entry: PoolEntry) -> None:
        entry.num_leases -= 1
        if not entry.num_leases:
            self._begin_idling(entry)
        self._schedule()

    def _begin_idling(self, entry: PoolEntry) -> None:
        loop = asyncio.get_running_loop()
        entry.idle_since_s = loop.time()
        if entry.source.ttl_s is not None and entry.is_evictable:
            entry.ttl_timer = loop.call_later(entry.source.ttl_s, self._expire, entry)

    def _expire(self, entry: PoolEntry) -> None:
        if entry.is_idle:
            _log.info("%s was idle for %g s and is unloaded", entry.name, entry.source.ttl_s)
            self._start_unload(entry)

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Unload models that an administrator wants unloaded, and load those at the head of the queue."""
        if self._is_closed:
            return
        self._draining = None
        for entry in self._entries.values():
            if entry.unloaded is not None and entry.is_idle:
                self._start_unload(entry)
        is_blocked = False
        for entry in list(self._queue):
            if not entry.waiters:  # all their clients have disconnected
                self._queue.remove(entry)
            elif entry.state is ModelState.LOADED and entry.unloaded is None and entry is not self._draining:
                self._queue.remove(entry)
                self._admit_waiters(entry)
            elif entry.is_resident:  # it is being unloaded, or will be
                continue
            elif not is_blocked and self._fits(entry):
                self._queue.remove(entry)
                self._start_load(entry)
            elif not is_blocked:
                self._make_space_for(entry)
                is_blocked = True  # entries behind it are not loaded before it

    def _admit_waiters(self, entry: PoolEntry) -> None:
        while entry.waiters:
            waiter = entry.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._count_lease(entry)

    def _fits(self, entry: PoolEntry, *, includes_unloading: bool = True) -> bool:
        others = [
            other
            for other in self._entries.values()
            if other.is_resident and (includes_unloading or other.state is not ModelState.UNLOADING)
        ]
        has_slot = self._max_loaded is None or len(others) < self._max_loaded
        num_bytes = entry.num_bytes + sum(other.num_bytes for other in others)
        return has_slot and (self._max_bytes is None or num_bytes <= self._max_bytes)

    def _make_space_for(self, entry: PoolEntry) -> None:
        """Evict idle models, or drain one that is in use if the first request has waited long enough."""
        if self._is_too_large(entry):
            self._fail_too_large(entry)
            return
        while not self._fits(entry, includes_unloading=False):
            evictable = [other for other in self._entries.values() if other.is_evictable and other.unloaded is None]
            idle = [other for other in evictable if other.is_idle]
            if idle:
                victim = min(idle, key=lambda other: other.idle_since_s or 0.0)
                _log.info("%s is unloaded for %s", victim.name, entry.name)
                self._start_unload(victim)
                continue
            if evictable:
                self._drain_one(evictable, entry)
            return

    def _is_too_large(self, entry: PoolEntry) -> bool:
        """Whether a model does not fit beside those that are never unloaded."""
        pinned = [other for other in self._entries.values() if other.source.is_pinned]
        num_bytes = entry.num_bytes + sum(other.num_bytes for other in pinned)
        has_too_many = self._max_loaded is not None and len(pinned) >= self._max_loaded
        return has_too_many or (self._max_bytes is not None and num_bytes > self._max_bytes)

    def _drain_one(self, evictable: list[PoolEntry], entry: PoolEntry) -> None:
        loop = asyncio.get_running_loop()
        wait_s = entry.waiting_since_s + DRAIN_AFTER_S - loop.time()
        if wait_s <= 0:
            self._draining = min(evictable, key=lambda other: other.loaded_s)
        elif self._drain_timer is None or self._drain_timer.cancelled():
            self._drain_timer = loop.call_later(wait_s, self._check_drain)

    def _check_drain(self) -> None:
        self._drain_timer = None
        self._schedule()

    def _fail_too_large(self, entry: PoolEntry) -> None:
        self._queue.remove(entry)
        if self._max_bytes is not None and entry.num_bytes:
            needs = f"It needs {entry.num_bytes / 1e9:.2f} GB, and the models may take {self._max_bytes / 1e9:.2f} GB"
        else:
            needs = "The models that are always loaded use up the number of models that may be loaded"
        self._fail(entry, f"{needs}.")

    # -- loading and unloading ----------------------------------------------------------------------------------------

    def _start_load(self, entry: PoolEntry) -> None:
        entry.state = ModelState.LOADING
        entry.task = asyncio.get_running_loop().create_task(self._load(entry), name=f"load {entry.name}")

    async def _load(self, entry: PoolEntry) -> None:
        try:
            await self._open(entry)
        except asyncio.CancelledError:
            entry.state = ModelState.UNLOADED
            raise
        except Exception as error:
            self._fail(entry, _reason_of(error))
        finally:
            entry.task = None
        if entry.state is ModelState.LOADED:
            self._admit_waiters(entry)
            if not entry.num_leases:
                self._begin_idling(entry)
        self._schedule()

    async def _open(self, entry: PoolEntry) -> None:
        """Load a model. Raises the errors of loading."""

        def report_progress(done: int, total: int) -> None:
            entry.progress = done / total if total else None

        entry.state = ModelState.LOADING
        context = entry.source.open(report_progress)
        try:
            model = await context.__aenter__()
        finally:
            entry.progress = None
        try:
            entry.set_model(model)
            await self._restore_adapters(entry, model)
        except BaseException as error:
            entry.models = {}
            await context.__aexit__(type(error), error, error.__traceback__)
            raise
        entry.context = context
        entry.mark_loaded()
        entry.loaded_s = entry.idle_since_s = asyncio.get_running_loop().time()

    async def _restore_adapters(self, entry: PoolEntry, model: ServedModel) -> None:
        """Load and unload the adapters that were loaded and unloaded before the model was unloaded."""
        for adapter in entry.removed_adapters & entry.models.keys():
            await model.engine.unload_adapter(adapter)
            del entry.models[adapter]
        for adapter, path in list(entry.added_adapters.items()):
            try:
                await model.engine.load_adapter(adapter, path)
                entry.add_adapter(adapter, path)
            except AetherMindError as error:
                _log.error("the adapter %s could not be loaded again: %s", adapter, error)
                entry.remove_adapter(adapter)
                self._owners.pop(adapter, None)
                self._lost_adapters[adapter] = (
                    f"The adapter {adapter:.100} could not be loaded again with its model {entry.name}: {error} An "
                    f"administrator can load it by POST {LOAD_ADAPTER}."
                )

    def _start_unload(self, entry: PoolEntry) -> None:
        entry.state = ModelState.UNLOADING
        entry.task = asyncio.get_running_loop().create_task(self._unload(entry), name=f"unload {entry.name}")

    async def _unload(self, entry: PoolEntry) -> None:
        entry.state = ModelState.UNLOADING
        if entry.ttl_timer is not None:
            entry.ttl_timer.cancel()
            entry.ttl_timer = None
        context, entry.context = entry.context, None
        entry.models = {}
        try:
            if context is not None:
                await context.__aexit__(None, None, None)
        except Exception:
            _log.exception("%s was not unloaded cleanly", entry.name)
        finally:
            entry.state = ModelState.UNLOADED if entry.failure is None else ModelState.FAILED
            entry.loaded_at = entry.task = None
            if entry.unloaded is not None:
                entry.unloaded.set_result(None)
                entry.unloaded = None
        self._schedule()

    def _fail(self, entry: PoolEntry, reason: str) -> None:
        """Note why a model cannot be used, and fail the requests that wait for it."""
        _log.error("%s could not be loaded: %s", entry.name, reason)
        entry.state = ModelState.FAILED
        self._note_failure(entry, reason)
        if entry.unloaded is not None:
            entry.unloaded.set_result(None)
            entry.unloaded = None
        now = asyncio.get_running_loop().time()
        self._fail_waiters(entry, lambda: _load_failed(entry, now))

    def _note_failure(self, entry: PoolEntry, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        is_consecutive = entry.failure is not None or now < entry.retry_at_s + MAX_BACKOFF_S
        entry.num_failures = entry.num_failures + 1 if is_consecutive else 1
        entry.failure = reason
        entry.retry_at_s = now + min(FIRST_BACKOFF_S * 2.0 ** (entry.num_failures - 1), MAX_BACKOFF_S)

    def _unload_failed(self, entry: PoolEntry) -> None:
        """Unload a model whose engine failed, once its open requests have ended. The next request loads it again."""
        self._note_failure(entry, str(entry.base.engine.failure))
        entry.unloaded = asyncio.get_running_loop().create_future()
        self._schedule()

    def _fail_waiters(self, entry: PoolEntry, error: Any) -> None:
        while entry.waiters:
            waiter = entry.waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error())


@asynccontextmanager
async def _already_loaded(model: ServedModel, _: ProgressCallback) -> AsyncIterator[ServedModel]:
    yield model


def _reason_of(error: Exception) -> str:
    """Why a model cannot be loaded, as a sentence. An unexpected error is logged."""
    if isinstance(error, AetherMindError):
        return str(error)
    _log.error("a model could not be loaded", exc_info=error)
    return describe_exception(error)


def _load_failed(entry: PoolEntry, now: float) -> ApiError:
    wait_s = max(1, ceil(entry.retry_at_s - now))
    return ApiError(
        503,
        f"The model {entry.name} could not be loaded: {entry.failure} It is tried again in {wait_s} s or later.",
        code="model_load_failed",
        retry_after_s=wait_s,
    )
