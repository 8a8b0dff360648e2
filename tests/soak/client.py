"""A client that costs little, so that many fit beside the server, and that can leave or stop reading at any moment."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.soak.server import KEY, Server

__all__ = ["Answer", "Call", "ask", "calling"]


@dataclass(slots=True)
class Answer:
    """What came back. `pieces_s` is when each piece of text of a stream came; `failure` is None for a whole answer."""

    status: int = 0
    text: str = ""
    pieces_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None


@dataclass(slots=True)
class Call:
    """A request that was sent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def status(self) -> int:
        """The answer's status; its headers are read."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return 0
        return int(head.split(maxsplit=2)[1])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """A stream's events; an event is a line, and the framing around it is none."""
        held = b""
        while data := await self.reader.read(1 << 16):
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])


@asynccontextmanager
async def calling(
    server: Server, path: str, body: bytes, *, receive_bytes: int | None = None, key: str = KEY
) -> AsyncIterator[Call]:
    """Send a request on a connection of its own, which is cut at the end, whatever is still on its way."""
    plug = socket.socket()
    plug.setblocking(False)
    if receive_bytes is not None:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    lines = ["Host: localhost", "Connection: close", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}"]
    request = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body
    await asyncio.get_running_loop().sock_connect(plug, (server.host, server.port))
    num_sent = plug.send(request)  # the server has something to do while streams are opened here
    reader, writer = await asyncio.open_connection(sock=plug, limit=1 << 20)
    try:
        writer.write(request[num_sent:])
        yield Call(reader, writer)
    finally:
        writer.transport.abort()


async def ask(server: Server, body: dict[str, Any], path: str = "/v1/completions", *, key: str = KEY) -> Answer:
    """Ask, and wait for the end of the answer."""
    answer, start_s = Answer(), time.perf_counter()
    try:
        async with calling(server, path, json.dumps(body).encode(), key=key) as call:
            answer.status = await call.status()
            if answer.status != 200:
                await call.reader.read()
                answer.failure = f"HTTP {answer.status}"
            elif body.get("stream"):
                await _follow(call, answer)
            else:
                choice = json.loads(await call.reader.read())["choices"][0]
                answer.text = choice.get("text") or choice.get("message", {}).get("content") or ""
    except (OSError, ValueError, KeyError, asyncio.IncompleteReadError) as error:
        answer.failure = f"{type(error).__name__}: {error}"
    answer.seconds = time.perf_counter() - start_s
    return answer


async def _follow(call: Call, answer: Answer) -> None:
    is_whole = False
    async for event in call.events():
        if "error" in event:
            answer.failure = f"error event: {event['error']['code']}"
            return
        for choice in event["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if text:
                answer.pieces_s.append(time.perf_counter())
            answer.text += text
            is_whole = is_whole or choice["finish_reason"] is not None
    if not is_whole:
        answer.failure = "cut off"
