"""Serving until told to stop: engines started, requests answered, open answers finished before the end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from aethermind.engine.process import EngineProcess
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.errors import InvalidArgumentError
from aethermind.log import get_logger
from aethermind.server.app import create_app
from aethermind.server.loopback import is_loopback
from aethermind.server.protocol import bound_sending, bounded_protocol
from aethermind.server.served_model import ServedModel

if TYPE_CHECKING:
    from fastapi import FastAPI

    from aethermind.llm import LLM
    from aethermind.server.limits import Admission, Limits
    from aethermind.server.observation.tracing import Tracing
    from aethermind.server.tenants import Tenants
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["bind", "dismiss", "running", "serve"]

_BACKLOG = 2048
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FAREWELL_S = 1.0
"""Seconds in which clients may hear that their answers end."""

_LAST_BYTES_S = 5
"""Seconds in which connections may take what was sent on them."""

_log = get_logger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. InvalidArgumentError where the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InvalidArgumentError(f"There is no address {host!r:.100}. Correct --host.") from None
    try:
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        is_elsewhere = error.errno == errno.EADDRNOTAVAIL
        raise InvalidArgumentError(
            f"Port {port} of {host} cannot be listened on: {os.strerror(error.errno or 0)}. "
            + ("Correct --host." if is_elsewhere else "Choose another with --port.")
        ) from None
    # Connections inherit it. Without, what is small waits up to 40 ms for the acknowledgement of what came before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def serve(
    models: Mapping[str, LLM | EngineProcess],
    listening: socket.socket,
    *,
    limits: Limits,
    tenants: Tenants | None = None,
    origins: Sequence[str] = (),
    log_prompts: bool = False,
    tracing: Tracing | None = None,
    strict_requests: bool = False,
    chat_template: ChosenTemplate | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Start the models' engines and serve them under their names until SIGINT or SIGTERM.

    Open answers are finished, unless it comes twice. Raises what keeps a model from being loaded.
    """
    options: dict[str, Any] = {
        "origins": origins,
        "log_prompts": log_prompts,
        "tracing": tracing,
        "strict_requests": strict_requests,
        "chat_template": chat_template,
    }
    async with running(models, listening, limits=limits, tenants=tenants, **options) as app:
        with _stop_signals() as stops:
            on_ready()
            await _drain(stops, app.state.admission, limits.drain_timeout_s)
        await dismiss(app)


@asynccontextmanager
async def running(
    models: Mapping[str, LLM | EngineProcess],
    listening: socket.socket,
    *,
    limits: Limits,
    tenants: Tenants | None = None,
    origins: Sequence[str] = (),
    log_prompts: bool = False,
    tracing: Tracing | None = None,
    strict_requests: bool = False,
    chat_template: ChosenTemplate | None = None,
) -> AsyncIterator[FastAPI]:
    """Serve the models as long as the context is open; yields the application."""
    async with AsyncExitStack() as stack:
        served = [await _started(name, model, stack) for name, model in models.items()]
        if chat_template is not None:
            served = [one.with_chat_template(chat_template) for one in served]
        only_local = is_loopback(listening.getsockname()[0])
        app = create_app(
            served,
            limits=limits,
            tenants=tenants,
            only_local=only_local,
            origins=origins,
            log_prompts=log_prompts,
            tracing=tracing,
            strict_requests=strict_requests,
        )
        bound_sending(listening)
        config = uvicorn.Config(
            app,
            http=bounded_protocol(limits, app.state.metrics.count_refusal),
            log_config=None,
            log_level="error",  # nonsense of clients is answered, and no news
            access_log=False,
            timeout_keep_alive=limits.idle_timeout_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=_LAST_BYTES_S,
        )
        server = _Server(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            try:
                yield app
            finally:
                server.should_exit = True


async def _started(name: str, model: LLM | EngineProcess, stack: AsyncExitStack) -> ServedModel:
    """A model whose engine serves until `stack` is closed."""
    if isinstance(model, EngineProcess):
        return ServedModel.of_process(name, await stack.enter_async_context(model))
    return ServedModel.of(name, model, await stack.enter_async_context(AsyncEngine(model.engine)))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would stop listening before open answers are finished."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _stop_signals() -> Iterator[asyncio.Queue[int]]:
    """Signals that ask this process to stop, as they come."""
    loop, stops = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stops.put_nowait, number)
    try:
        yield stops
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _drain(stops: asyncio.Queue[int], admission: Admission, timeout_s: float) -> None:
    """From the first signal on nobody new is let in; return when all have left, time is up, or at a second signal."""
    await stops.get()
    admission.close()
    if admission.num_open:
        _log.warning("stopping once %d open answers are finished, or after %g s", admission.num_open, timeout_s)
    left = asyncio.create_task(admission.wait_until_empty())
    again = asyncio.create_task(stops.get())
    await asyncio.wait({left, again}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    left.cancel()
    again.cancel()


async def dismiss(app: FastAPI) -> None:
    """End the answers that are still open: with an error for who listens, by cutting the connection of who does not."""
    state = app.state
    if not state.admission.num_open:
        return
    _log.warning("%d answers are not finished and end with an error", state.admission.num_open)
    await asyncio.gather(*(model.engine.close() for model in state.models.loaded))
    with suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await state.admission.wait_until_empty()
    state.open_requests.cut()
