"""The demo model behind a real socket, and clients for it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import openai
import pytest

from aethermind import LLM, Runtime
from aethermind.server import ModelPool
from aethermind.server.admission import Limits
from aethermind.server.run import bind, running

NUM_UNREAD = 4


@contextmanager
def serving(llm: LLM | ModelPool, *, limits: Limits | None = None, **options: Any) -> Iterator[str]:
    """Run a server in a thread of its own; yields its address. `options` are those of `running`."""
    models = llm if isinstance(llm, ModelPool) else {"demo": llm}
    is_up, loops, stop = threading.Event(), [], asyncio.Event()
    with bind("127.0.0.1", 0) as listening:

        async def run() -> None:
            async with running(models, listening, limits=limits or Limits(), **options):
                loops.append(asyncio.get_running_loop())
                is_up.set()
                await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        port = listening.getsockname()[1]
        thread.start()
        try:
            assert is_up.wait(30)
            yield f"http://127.0.0.1:{port}"
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join()


@pytest.fixture(scope="session")
def llm(runtime: Runtime) -> LLM:
    return LLM(device="cpu", dtype="float32", runtime=runtime, max_model_len=512)


@pytest.fixture(scope="session")
def address(llm: LLM) -> Iterator[str]:
    with serving(llm) as address:
        yield address


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    """A plain client. The fixture ends once all requests of the test have ended and their blocks are free."""
    with httpx.Client(base_url=address, timeout=30) as client:
        yield client
        await_idle(client)


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def open_server(runtime: Runtime) -> Iterator[Callable[..., httpx.Client]]:
    """Start a server with its own options; returns a client for it."""
    with ExitStack() as stack:

        def start(*, block_size: int = 16, scheduling_policy: str = "fair", **options: Any) -> httpx.Client:
            own = LLM(
                device="cpu",
                dtype="float32",
                runtime=runtime,
                max_model_len=512,
                block_size=block_size,
                scheduling_policy=scheduling_policy,
            )
            address = stack.enter_context(serving(own, **options))
            return stack.enter_context(httpx.Client(base_url=address, timeout=30))

        yield start


@contextmanager
def unread(http: httpx.Client, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
    """A stream of `NUM_UNREAD` answers that is not read, and so is open while the context is.

    The answers are longer than all buffers together, so backpressure stops them before they end.
    """
    body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    body |= {"n": NUM_UNREAD, "logprobs": 20}
    transport = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    with (
        httpx.Client(base_url=http.base_url, headers=headers, timeout=30, transport=transport) as own,
        own.stream("POST", "/v1/completions", json=body) as answer,
    ):
        yield answer


@contextmanager
def paused_engine(llm: LLM, after: int = 4) -> Iterator[threading.Event]:
    """Pause an engine after some steps until the yielded event is set, so that requests are in flight meanwhile."""
    advance, resume, numbers = llm.engine.advance, threading.Event(), itertools.count()

    def paused_advance() -> Any:
        if next(numbers) >= after:
            resume.wait()
        return advance()

    llm.engine.advance = paused_advance  # type: ignore[method-assign]
    try:
        yield resume
    finally:
        resume.set()
        del llm.engine.advance  # type: ignore[method-assign]


def await_idle(http: httpx.Client) -> None:
    """Wait until no request is in flight and no block is in use. A leak makes the test time out."""
    while True:
        samples = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#")
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")
        if all(float(samples[f'aethermind_{name}{{model_name="demo"}}']) == 0 for name in names):
            return
