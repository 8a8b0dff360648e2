"""Running the HTTP server: starts engines, serves until SIGINT or SIGTERM, and drains requests before it stops."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Unpack

import uvicorn

from aethermind.engine.process import EngineProcess
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.errors import InvalidArgumentError
from aethermind.log import get_logger
from aethermind.server.access import is_loopback
from aethermind.server.app import AppOptions, create_app
from aethermind.server.http_protocol import bounded_protocol, limit_send_buffer
from aethermind.server.model_pool import ModelPool
from aethermind.server.served_model import ServedModel

if TYPE_CHECKING:
    from fastapi import FastAPI

    from aethermind.llm import LLM
    from aethermind.server.admission import AdmissionController, Limits
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["bind", "fail_unfinished", "running", "serve"]

_BACKLOG = 2048
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ERROR_DELIVERY_S = 1.0
"""Seconds in which clients may read the error that ends an unfinished completion."""

_FLUSH_S = 5
"""Seconds in which connections may flush their send buffers."""

_log = get_logger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 chooses a free one. InvalidArgumentError if the address is unknown or taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InvalidArgumentError(f"There is no address {host!r:.100}. Correct --host.") from None
    try:
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        is_foreign = error.errno == errno.EADDRNOTAVAIL
        raise InvalidArgumentError(
            f"Port {port} of {host} cannot be listened on: {os.strerror(error.errno or 0)}. "
            + ("Correct --host." if is_foreign else "Choose another with --port.")
        ) from None
    # Connections inherit it. Otherwise Nagle's algorithm delays small events until the previous one is acknowledged.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def serve(
    models: Mapping[str, LLM | EngineProcess] | ModelPool,
    listening: socket.socket,
    *,
    limits: Limits,
    chat_template: ChosenTemplate | None = None,
    on_listening: Callable[[], None] = lambda: None,
    on_ready: Callable[[], None] = lambda: None,
    **options: Unpack[AppOptions],
) -> None:
    """Start the models' engines and serve them under their names until SIGINT or SIGTERM; a pool loads them on demand.

    Requests in flight are finished first, unless a second signal comes. `options` are those of `create_app`.
    `on_listening` is called before the models of a pool are loaded that loads while the server listens, `on_ready` when
    all are loaded that load at start. Raises the errors of loading a model.
    """
    async with running(models, listening, limits=limits, chat_template=chat_template, **options) as app:
        pool: ModelPool = app.state.models

        async def load() -> None:
            if pool.loads_while_listening:
                on_listening()
                await pool.load_at_start()
            on_ready()

        with _stop_signals() as stop_signals:
            loading = asyncio.create_task(load())
            drained = asyncio.create_task(_drain(stop_signals, app.state.admission, limits.drain_timeout_s))
            drained.add_done_callback(lambda _: loading.cancel())
            await asyncio.wait({loading, drained}, return_when=asyncio.FIRST_EXCEPTION)
            drained.cancel()
        await fail_unfinished(app)
    if not loading.cancelled():
        loading.result()  # here, because `running` would raise it in a group of exceptions


@asynccontextmanager
async def running(
    models: Mapping[str, LLM | EngineProcess] | ModelPool,
    listening: socket.socket,
    *,
    limits: Limits,
    chat_template: ChosenTemplate | None = None,
    **options: Unpack[AppOptions],
) -> AsyncIterator[FastAPI]:
    """Serve the models while the context is open; yields the application."""
    async with AsyncExitStack() as stack:
        if isinstance(models, ModelPool):
            pool = await stack.enter_async_context(models)
        else:
            served = [await _start(name, model, stack) for name, model in models.items()]
            if chat_template is not None:
                served = [model.with_chat_template(chat_template) for model in served]
            pool = ModelPool.of([model.with_checked_calls() for model in served])
        only_local = is_loopback(listening.getsockname()[0])
        app = create_app(pool, limits=limits, only_local=only_local, **options)
        limit_send_buffer(listening)
        config = uvicorn.Config(
            app,
            http=bounded_protocol(limits, app.state.metrics.count_rejection),
            log_config=None,
            log_level="error",  # malformed requests are answered and need no log line
            access_log=False,
            timeout_keep_alive=limits.keep_alive_timeout_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=_FLUSH_S,
        )
        server = _Server(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            try:
                yield app
            finally:
                server.should_exit = True


async def _start(name: str, model: LLM | EngineProcess, stack: AsyncExitStack) -> ServedModel:
    """Start a model's engine, which runs until `stack` is closed."""
    if isinstance(model, EngineProcess):
        return ServedModel.of_process(name, await stack.enter_async_context(model))
    model.tokenizer.load_library_tokenizer()  # now, because no other thread runs while it is read
    return ServedModel.of(name, model, await stack.enter_async_context(AsyncEngine(model.engine)))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would stop listening before requests in flight are finished."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _stop_signals() -> Iterator[asyncio.Queue[int]]:
    """A queue of the signals that ask this process to stop."""
    loop, stop_signals = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop_signals.put_nowait, number)
    try:
        yield stop_signals
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _drain(stop_signals: asyncio.Queue[int], admission: AdmissionController, timeout_s: float) -> None:
    """Reject new requests from the first signal on, and wait for those in flight, the timeout or a second signal."""
    await stop_signals.get()
    admission.close()
    if admission.num_open:
        _log.warning("stopping once %d open completions are finished, or after %g s", admission.num_open, timeout_s)
    empty = asyncio.create_task(admission.wait_until_empty())
    second = asyncio.create_task(stop_signals.get())
    await asyncio.wait({empty, second}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    empty.cancel()
    second.cancel()


async def fail_unfinished(app: FastAPI) -> None:
    """End unfinished completions with an error, then close the connections of clients that do not read it."""
    state = app.state
    if not state.admission.num_open:
        return
    _log.warning("%d completions are not finished and end with an error", state.admission.num_open)
    state.models.fail_waiting_requests()
    await asyncio.gather(*(model.engine.close() for model in state.models.base_models))
    with suppress(TimeoutError):
        async with asyncio.timeout(_ERROR_DELIVERY_S):
            await state.admission.wait_until_empty()
    state.in_flight_requests.abort_all()
