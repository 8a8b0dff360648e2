"""A stream of server-sent events: keep-alive comments, and one end for every cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from aethermind.server import sse
from aethermind.server.openai.errors import as_api_error
from aethermind.server.sse import EventBatch, EventStream, Framing

PLAIN = Framing(lambda event: str(event).encode(), lambda error: {"error": error.code}, b"end")


class Client:
    """A client that records what is sent, and can disconnect or stop reading."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.is_complete = False
        self.is_reading = True
        self.gone = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Condition()
        self.is_cut = False
        self.is_closed = False
        self.record = SimpleNamespace(error_code=None)

    async def receive(self) -> NoReturn:
        raise AssertionError("a stream learns of a disconnect by `state.disconnected`")

    async def send(self, message: Any) -> None:
        assert message["type"] == "http.response.start"

    async def send_part(self, data: bytes, *, is_last: bool = False) -> None:
        await self.read_all()
        self.got.append(data)
        self.is_complete = is_last
        async with self.heard:
            self.heard.notify_all()

    async def read_all(self) -> None:
        if not self.is_reading:
            await asyncio.Event().wait()

    async def serve(self, events: AsyncIterator[EventBatch], timeout_s: float = 60.0) -> None:
        resources = AsyncExitStack()
        resources.callback(setattr, self, "is_closed", True)
        stream = EventStream(events, resources, framing=PLAIN, send_timeout_s=timeout_s)
        cut = partial(setattr, self, "is_cut", True)
        own = {"disconnected": self.gone, "abort": cut, "send_chunk": self.send_part, "flush": self.read_all}
        state = {"record": self.record, **own}
        scope: Any = {"state": state}
        await asyncio.wait_for(stream(scope, self.receive, self.send), 30)
        assert self.is_closed
        assert len(asyncio.all_tasks()) == 1, "a stream leaves no task behind"


def test_a_silent_stream_sends_keep_alive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.001)

    async def talk() -> list[bytes]:
        client = Client()

        async def events() -> AsyncIterator[EventBatch]:
            for number in range(2):
                async with client.heard:
                    await client.heard.wait_for(lambda: client.got[-2:] == [b": keep-alive\n\n"] * 2)
                yield EventBatch([{"n": number}], is_last=number == 1)

        await client.serve(events())
        assert client.is_complete
        return client.got

    got = asyncio.run(talk())
    assert [part for part in got if part != b": keep-alive\n\n"] == [b"{'n': 0}", b"{'n': 1}end"]
    assert got[-1] == b"{'n': 1}end"


def test_an_error_during_a_stream_is_the_last_event() -> None:
    async def talk() -> Client:
        client = Client()

        async def events() -> AsyncIterator[EventBatch]:
            yield EventBatch([{"n": 0}])
            raise ValueError("broken")

        await client.serve(events())
        return client

    client = asyncio.run(talk())
    code = as_api_error(ValueError("broken")).code
    assert client.got == [b"{'n': 0}", str({"error": code}).encode() + b"end"]
    assert client.record.error_code == code


def test_a_disconnect_cancels_the_events() -> None:
    async def talk() -> tuple[Client, list[str]]:
        client, ended = Client(), list[str]()

        async def events() -> AsyncIterator[EventBatch]:
            try:
                yield EventBatch([{"n": 0}])
                client.gone.set_result(None)
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        await client.serve(events())
        return client, ended

    client, ended = asyncio.run(talk())
    assert client.got == [b"{'n': 0}"]
    assert ended == ["cancelled"]
    assert not client.is_complete


def test_a_large_last_event_is_flushed_before_the_end() -> None:
    """The connection closes behind the end, and a server that stops does not wait for clients to read then."""

    async def talk() -> list[bytes]:
        client = Client()

        async def events() -> AsyncIterator[EventBatch]:
            yield EventBatch([{"n": "x" * 100_000}], is_last=True)

        await client.serve(events())
        return client.got

    assert [len(part) > 100_000 for part in asyncio.run(talk())] == [True, False]


def test_a_client_that_does_not_read_the_end_is_disconnected() -> None:
    async def talk() -> Client:
        client = Client()

        async def events() -> AsyncIterator[EventBatch]:
            yield EventBatch([{"n": 0}])
            client.is_reading = False
            yield EventBatch([], is_last=True)

        await client.serve(events(), timeout_s=0.01)
        return client

    client = asyncio.run(talk())
    assert client.is_cut
    assert client.got == [b"{'n': 0}"]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch, is_silent: bool) -> None:
    """Also where it is a sign of life that is not read."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.001)

    async def talk() -> Client:
        client = Client()

        async def events() -> AsyncIterator[EventBatch]:
            yield EventBatch([{"n": 0}])
            client.is_reading = False
            if is_silent:
                await asyncio.Event().wait()
            yield EventBatch([{"n": 1}], is_last=True)

        await client.serve(events(), timeout_s=0.01)
        return client

    client = asyncio.run(talk())
    assert client.is_cut
    assert client.record.error_code == "slow_reader"
    assert client.got[0] == b"{'n': 0}"
    assert not client.is_complete
