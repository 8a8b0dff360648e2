"""The pool of models against what its documentation says, with a loader whose loads the test finishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from tests.server.virtual_loop import VirtualLoop

from aethermind.errors import ConfigError, EngineDeadError
from aethermind.server import ModelPool, ModelSource
from aethermind.server.model_pool import DRAIN_AFTER_S, MAX_BACKOFF_S, ModelState
from aethermind.server.openai.errors import ApiError

TTL_S = 30.0
TIMEOUT_S = 500.0


class FakeLoader:
    """Loads and unloads models when the test says so. Records what is in memory, and mistakes of the pool."""

    def __init__(self) -> None:
        self.loading: dict[str, asyncio.Future[None]] = {}
        self.unloading: dict[str, asyncio.Future[None]] = {}
        self.loaded: dict[str, Any] = {}
        self.num_loads = 0
        self.most = 0
        self.waits = True
        """Whether loads and unloads wait for the test."""

    @property
    def num_present(self) -> int:
        return len(self.loaded.keys() | self.loading.keys() | self.unloading.keys())

    def source(self, name: str, **options: Any) -> ModelSource:
        return ModelSource(name, lambda on_progress: self._open(name, on_progress), **options)

    @asynccontextmanager
    async def _open(self, name: str, on_progress: Any) -> AsyncIterator[Any]:
        assert name not in self.loaded.keys() | self.loading.keys() | self.unloading.keys(), "loaded twice"
        self.num_loads += 1
        on_progress(1, 4)
        await self._wait(self.loading, name)
        self.loaded[name] = model = fake_model(name)
        yield model
        assert model.num_users == 0, "unloaded while in use"
        del self.loaded[name]
        await self._wait(self.unloading, name)

    async def _wait(self, waiting: dict[str, asyncio.Future[None]], name: str) -> None:
        waiting[name] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, self.num_present)
        try:
            if self.waits:
                await waiting[name]
        finally:
            del waiting[name]


def fake_model(name: str, adapters: tuple[str, ...] = ()) -> Any:
    info = SimpleNamespace(max_model_len=8, weight_bytes=60, kv_cache_bytes=30, arena_bytes=10, adapters=adapters)
    model = SimpleNamespace(name=name, info=info, engine=SimpleNamespace(failure=None), num_users=0)
    model.with_adapters = lambda: [model, *(SimpleNamespace(name=adapter) for adapter in adapters)]
    return model


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.settle()
    loop.close()


class Client:
    """A request: it leases a model until the test ends it."""

    def __init__(self, loop: VirtualLoop, pool: ModelPool, name: str) -> None:
        self.name = name
        self.model: Any = None
        self.end = loop.create_future()
        self.task = loop.create_task(self._run(pool))

    async def _run(self, pool: ModelPool) -> None:
        async with pool.lease(self.name) as model:
            self.model = model
            self.model.num_users += 1
            try:
                await self.end
            finally:
                self.model.num_users -= 1

    @property
    def error(self) -> ApiError | None:
        """The error that the request got; None while it waits or was served."""
        error = self.task.exception() if self.task.done() and not self.task.cancelled() else None
        assert error is None or isinstance(error, ApiError)
        return error


NAMES = ("a", "b", "c", "d", "e")
MAX_LOADED = 2


class PoolMachine(RuleBasedStateMachine):
    """Requests come, end and are cancelled; loads finish or fail; time passes; administrators load and unload."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.loader = FakeLoader()
        ttls = {"a": TTL_S, "b": None, "c": TTL_S, "d": None, "e": None}
        sources = [self.loader.source(name, ttl_s=ttls[name]) for name in NAMES]
        self.pool = ModelPool(sources, max_loaded=MAX_LOADED, load_timeout_s=TIMEOUT_S)
        self.all: list[Client] = []
        self.admins: list[asyncio.Task[None]] = []

    @rule(target=clients, name=st.sampled_from(NAMES))
    def arrive(self, name: str) -> Client:
        client = Client(self.loop, self.pool, name)
        self.all.append(client)
        self.loop.settle()
        return client

    @rule(client=consumes(clients))
    def end(self, client: Client) -> None:
        if client.model is None:
            client.task.cancel()
        elif not client.end.done():
            client.end.set_result(None)
        self.loop.settle()

    @rule(client=consumes(clients))
    def disconnect(self, client: Client) -> None:
        client.task.cancel()
        self.loop.settle()

    @precondition(lambda self: self.loader.loading)
    @rule(data=st.data())
    def finish_load(self, data: Any) -> None:
        self.loader.loading[data.draw(st.sampled_from(sorted(self.loader.loading)))].set_result(None)
        self.loop.settle()

    @precondition(lambda self: self.loader.loading)
    @rule(data=st.data())
    def fail_load(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.loader.loading)))
        self.loader.loading[name].set_exception(ConfigError(f"{name} is broken."))
        self.loop.settle()

    @precondition(lambda self: self.loader.unloading)
    @rule(data=st.data())
    def finish_unload(self, data: Any) -> None:
        self.loader.unloading[data.draw(st.sampled_from(sorted(self.loader.unloading)))].set_result(None)
        self.loop.settle()

    @precondition(lambda self: self.loader.loaded)
    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.loader.loaded)))
        self.loader.loaded[name].engine.failure = EngineDeadError("The engine crashed.")

    @rule(seconds=st.sampled_from((0.1, 1.5, TTL_S, 2 * MAX_BACKOFF_S)))
    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)

    @rule(name=st.sampled_from(NAMES), is_load=st.booleans())
    def administrate(self, name: str, is_load: bool) -> None:
        change = self.pool.load(name) if is_load else self.pool.unload(name)
        self.admins.append(self.loop.create_task(change))
        self.loop.settle()

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert self.loader.num_present <= MAX_LOADED
        assert self.loader.most <= MAX_LOADED

    @invariant()
    def clients_have_the_model_that_they_named(self) -> None:
        for client in self.all:
            if client.model is not None:
                assert client.model.name == client.name
                assert client.task.done() or self.loader.loaded[client.name] is client.model
            elif client.task.done() and not client.task.cancelled():
                error = client.error
                assert error is not None
                assert (error.status, error.code) in ((503, "model_load_failed"), (503, "model_loading"))
                assert error.retry_after_s is not None
                assert error.retry_after_s >= 1

    @invariant()
    def states_are_those_of_the_loader(self) -> None:
        for name, state in self._states().items():
            assert (state is ModelState.LOADED) == (name in self.loader.loaded), name
            assert (state is ModelState.LOADING) == (name in self.loader.loading), name
            assert (state is ModelState.UNLOADING) == (name in self.loader.unloading), name

    @invariant()
    def nothing_waits_that_could_be_served(self) -> None:
        busy = {client.name for client in self.all if client.model is not None and not client.task.done()}
        waiting = {client.name for client in self.all if client.model is None and not client.task.done()}
        is_still = not (self.loader.loading or self.loader.unloading)
        if is_still and waiting - busy:  # a model in use that is to be unloaded gets no new requests
            assert len(busy) == MAX_LOADED, "a request waits beside a free place"

    def _states(self) -> dict[str, ModelState]:
        async def statuses() -> list[Any]:
            return list(self.pool.statuses())

        found = self.loop.run_until_complete(statuses())
        assert all((status.progress == 0.25) == (status.state is ModelState.LOADING) for status in found)
        return {status.name: status.state for status in found}

    def teardown(self) -> None:
        """Every request is served or fails in the end, nothing starves, and closing unloads everything."""
        for _ in range(6 * len(NAMES)):
            for waiting in (*self.loader.loading.values(), *self.loader.unloading.values()):
                waiting.done() or waiting.set_result(None)
            for client in self.all:
                if client.model is not None and not client.end.done():
                    client.end.set_result(None)
            self.loop.advance(2 * DRAIN_AFTER_S)
        assert all(client.task.done() for client in self.all), "a request starves"
        assert all(task.done() for task in self.admins)
        self.loader.waits = False
        self.loop.run_until_complete(self.pool.close())
        assert self.loader.num_present == 0
        for task in self.admins:
            task.cancelled() or task.exception()
        asyncio.set_event_loop(None)
        self.loop.close()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_sequence_of_events = PoolMachine.TestCase


class Bench:
    """A pool over a loader that loads at once, and its clients."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        self.loop = loop
        self.loader = FakeLoader()
        self.loader.waits = False
        sources = [self.loader.source(name, ttl_s=TTL_S if name == "c" else None) for name in "abcd"]
        self.pool = ModelPool(sources, **options)

    def arrive(self, name: str) -> Client:
        client = Client(self.loop, self.pool, name)
        self.loop.settle()
        return client

    def end(self, client: Client) -> None:
        client.end.set_result(None)
        self.loop.settle()

    def use(self, *names: str) -> None:
        for name in names:
            self.end(self.arrive(name))
            self.loop.advance(0.1)

    @property
    def loaded(self) -> str:
        return "".join(sorted(self.loader.loaded))


def test_the_idle_model_that_was_used_least_recently_is_evicted(loop: VirtualLoop) -> None:
    bench = Bench(loop, max_loaded=3)
    bench.use("a", "b", "d", "a", "c")
    assert bench.loaded == "acd"
    busy = bench.arrive("d")
    bench.use("b")
    assert bench.loaded == "bcd", "a was used before c, and d is in use"
    bench.end(busy)


def test_concurrent_requests_share_one_load(loop: VirtualLoop) -> None:
    bench = Bench(loop)
    bench.loader.waits = True
    clients = [bench.arrive("a") for _ in range(5)]
    assert bench.loader.num_loads == 1
    bench.loader.loading["a"].set_result(None)
    loop.settle()
    assert all(client.model is bench.loader.loaded["a"] for client in clients)


def test_an_idle_model_is_unloaded_after_its_ttl(loop: VirtualLoop) -> None:
    bench = Bench(loop)
    bench.use("a", "c")
    loop.advance(TTL_S - 1)
    bench.use("c")
    loop.advance(TTL_S - 1)
    assert bench.loaded == "ac"
    client = bench.arrive("c")
    loop.advance(10 * TTL_S)
    assert bench.loaded == "ac", "it is in use"
    bench.end(client)
    loop.advance(TTL_S)
    assert bench.loaded == "a", "a has no TTL"


def test_a_stream_of_requests_for_one_model_does_not_starve_another(loop: VirtualLoop) -> None:
    bench = Bench(loop, max_loaded=1)
    first = bench.arrive("a")
    other = bench.arrive("b")
    second = bench.arrive("a")
    assert second.model is not None, "a model in use gets requests for a while"
    loop.advance(DRAIN_AFTER_S)
    third = bench.arrive("a")
    bench.end(first)
    assert (other.model, third.model) == (None, None)
    bench.end(second)
    assert other.model is not None
    assert third.model is None
    bench.end(other)
    assert third.model is not None


def test_the_back_off_doubles_with_each_failure_in_a_row(loop: VirtualLoop) -> None:
    bench = Bench(loop)
    bench.loader.waits = True
    for backoff_s in (1, 2, 4):
        client = bench.arrive("a")
        bench.loader.loading["a"].set_exception(ConfigError("It is broken."))
        loop.settle()
        assert client.error is not None
        assert (client.error.code, client.error.retry_after_s) == ("model_load_failed", backoff_s)
        loop.advance(backoff_s - 0.5)
        early = bench.arrive("a")
        assert early.error is not None
        assert early.error.retry_after_s == 1
        loop.advance(0.5)
    assert bench.loader.num_loads == 3


def test_a_model_whose_engine_died_is_loaded_again(loop: VirtualLoop) -> None:
    bench = Bench(loop)
    bench.use("a")
    dead = bench.loader.loaded["a"]
    dead.engine.failure = EngineDeadError("The engine was killed.")
    client = bench.arrive("a")
    assert client.error is not None
    assert "a could not be loaded: The engine was killed." in str(client.error)
    loop.advance(1)
    bench.use("a")
    assert bench.loader.loaded["a"] is not dead


def test_models_keep_to_a_budget_of_bytes(loop: VirtualLoop) -> None:
    loader = FakeLoader()
    loader.waits = False
    sizes = {"a": 40, "b": 40, "c": 30, "d": 101, "e": 100}
    pool = ModelPool([loader.source(name, estimate=partial(int, sizes[name])) for name in sizes], max_bytes=100)
    bench = Bench(loop)
    bench.loader, bench.pool = loader, pool
    for name, loaded in (("a", "a"), ("b", "ab"), ("c", "bc"), ("e", "e"), ("b", "b")):
        client = Client(loop, pool, name)
        loop.run_until_complete(served(client))
        bench.end(client)
        loop.advance(0.1)
        assert bench.loaded == loaded
    too_large = Client(loop, pool, "d")
    with pytest.raises(ApiError, match=r"It needs 0\.00 GB, and the models may take 0\.00 GB\."):
        loop.run_until_complete(too_large.task)
    assert bench.loaded == "b", "nothing is evicted in vain"


async def served(client: Client) -> None:
    """Wait until a request has its model, which a thread takes part in."""
    while client.model is None:
        await asyncio.sleep(0)


def test_a_server_that_stops_refuses_what_waits(loop: VirtualLoop) -> None:
    bench = Bench(loop, max_loaded=1)
    busy = bench.arrive("a")
    waiting = bench.arrive("b")
    bench.pool.fail_waiting_requests()
    loop.settle()
    late = bench.arrive("a")
    for client in (waiting, late):
        assert client.error is not None
        assert (client.error.status, client.error.code) == (503, "draining")
    bench.end(busy)
    assert busy.error is None


def test_a_request_that_waits_for_too_long_is_told_when_to_try_again(loop: VirtualLoop) -> None:
    bench = Bench(loop, max_loaded=1, load_timeout_s=5.0)
    busy = bench.arrive("a")
    waiting = bench.arrive("b")
    loop.advance(5)
    assert waiting.error is not None
    assert (waiting.error.status, waiting.error.code) == (503, "model_loading")
    assert waiting.error.retry_after_s == 1
    bench.end(busy)


@dataclass(frozen=True)
class AdaptedModel:
    """A loaded model whose adapters load when the test says so; `replace` makes an adapter of it."""

    name: str
    engine: Any
    info: Any
    parent: str | None = None

    def with_adapters(self) -> list[AdaptedModel]:
        return [self]


class AdapterEngine:
    """Loads adapters when the test says so, or fails."""

    failure = None

    def __init__(self, *, waits: bool) -> None:
        self.pending: list[asyncio.Future[None]] = []
        self.closed = False
        self._waits = waits

    async def load_adapter(self, name: str, path: str) -> None:
        if self._waits:
            self.pending.append(asyncio.get_running_loop().create_future())
            await self.pending[-1]


def adapted_source(name: str, engines: list[AdapterEngine], **options: Any) -> ModelSource:
    @asynccontextmanager
    async def open_model(_: Any) -> AsyncIterator[Any]:
        engine = AdapterEngine(waits=bool(engines))
        engines.append(engine)
        try:
            yield AdaptedModel(name, engine, fake_model(name).info)
        finally:
            engine.closed = True

    return ModelSource(name, open_model, **options)


def reloaded(loop: VirtualLoop, engines: list[AdapterEngine]) -> ModelPool:
    """A pool whose model `a` is loading its adapter `r` again, for a client that waits."""
    pool = ModelPool([adapted_source("a", engines), FakeLoader().source("b")], max_loaded=1)
    loop.run_until_complete(pool.load_adapter("a", "r", "path"))
    loop.run_until_complete(pool.unload("a"))
    return pool


def test_requests_wait_until_the_adapters_of_a_reloaded_model_are_loaded(loop: VirtualLoop) -> None:
    engines: list[AdapterEngine] = []
    pool = reloaded(loop, engines)
    first = loop.create_task(hold(pool, "r"))
    loop.settle()
    (waiting,) = engines[1].pending
    second, other = loop.create_task(hold(pool, "r")), loop.create_task(hold(pool, "b"))
    loop.settle()
    assert not any(task.done() for task in (first, second))
    assert not engines[1].closed
    waiting.set_result(None)
    loop.settle()
    assert first.result() == second.result() == "r"
    other.cancel()


def test_an_engine_whose_adapters_cannot_be_loaded_again_is_closed(loop: VirtualLoop) -> None:
    engines: list[AdapterEngine] = []
    pool = reloaded(loop, engines)
    request = loop.create_task(hold(pool, "a"))
    loop.settle()
    (waiting,) = engines[1].pending
    waiting.set_exception(RuntimeError("a bug"))
    loop.settle()
    assert isinstance(request.exception(), ApiError)
    assert engines[1].closed
    assert pool.status("a").state is ModelState.FAILED


def test_an_adapter_that_cannot_be_loaded_again_is_a_404_that_says_why(loop: VirtualLoop) -> None:
    engines: list[AdapterEngine] = []
    pool = reloaded(loop, engines)
    request, other = loop.create_task(hold(pool, "r")), loop.create_task(hold(pool, "a"))
    loop.settle()
    engines[1].pending.pop().set_exception(ConfigError("path does not exist."))
    loop.settle()
    late = loop.create_task(hold(pool, "r"))
    loop.settle()
    for error in (request.exception(), late.exception()):
        assert isinstance(error, ApiError)
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert "r could not be loaded again with its model a: path does not exist. " in str(error)
    assert other.result() == "a"
    assert loop.run_until_complete(adapters_of(pool)) == [(), ()]
    again = loop.create_task(pool.load_adapter("a", "r", "other"))
    loop.settle()
    engines[1].pending.pop().set_result(None)
    loop.run_until_complete(again)
    assert loop.run_until_complete(hold(pool, "r")) == "r"


def test_a_name_is_that_of_one_adapter_from_the_moment_it_is_asked_for(loop: VirtualLoop) -> None:
    engines: list[AdapterEngine] = []
    pool = ModelPool([adapted_source("a", engines), adapted_source("b", engines)])
    first, second = (loop.create_task(pool.load_adapter(name, "r", "path")) for name in "ab")
    loop.settle()
    for engine in engines:
        for waiting in engine.pending:
            waiting.set_result(None)
    loop.settle()
    assert first.exception() is None
    assert isinstance(second.exception(), ApiError)
    assert loop.run_until_complete(adapters_of(pool)) == [("r",), ()]


async def hold(pool: ModelPool, name: str) -> str:
    async with pool.lease(name) as model:
        return str(model.name)


async def adapters_of(pool: ModelPool) -> list[tuple[str, ...]]:
    return [status.adapters for status in pool.statuses()]
