"""Hours in minutes: everything that clients do, mixed, while the server's memory is watched."""

from __future__ import annotations

import asyncio
import json
import random
import time

from tests.soak.client import ask, calling
from tests.soak.load import body
from tests.soak.report import Figure
from tests.soak.server import Server

__all__ = ["growth"]

_NUM_CLIENTS = 12
_SETTLED = 0.25
"""The share of the time after which caches are full and memory should have found its size."""


async def growth(server: Server, num_seconds: float) -> list[Figure]:
    """Streams, whole answers, chats, mistakes and people who leave; memory at the end against that after a quarter."""
    start_s = time.perf_counter()
    end_s = start_s + num_seconds
    failures: list[str] = []
    num_asked = 0

    async def client(index: int) -> None:
        nonlocal num_asked
        chance = random.Random(index)
        while time.perf_counter() < end_s:
            num_asked += 1
            kind = chance.randrange(5)
            one = body(server, chance.randrange(10**9), max_tokens=chance.randint(1, 60))
            if kind == 0:
                await _leave(server, one, chance.uniform(0, 0.3))
                continue
            if kind == 1:
                del one["prompt"]
                one["messages"] = [{"role": "user", "content": f"Who are you, {chance.random()}?"}]
                answer = await ask(server, one, "/v1/chat/completions")
            elif kind == 2:
                answer = await ask(server, {**one, "temperature": -1})
                answer.failure = None if answer.status == 400 else f"{answer.status} for a mistake"
            else:
                answer = await ask(server, {**one, "stream": kind == 3, "n": chance.choice((1, 1, 3))})
            if answer.failure is not None:
                failures.append(answer.failure)

    async def watch() -> list[int]:
        await asyncio.sleep(num_seconds * _SETTLED)
        sizes = [server.resident_bytes()]
        while time.perf_counter() < end_s:
            await asyncio.sleep(min(1.0, num_seconds / 20))
            sizes.append(server.resident_bytes())
        return sizes

    sizes, *_ = await asyncio.gather(watch(), *(client(index) for index in range(_NUM_CLIENTS)))
    for failure in failures[:5]:
        print(failure)
    return [
        Figure("seconds", num_seconds),
        Figure("requests", num_asked),
        Figure("failures", len(failures), 0),
        Figure("megabytes at the end", sizes[-1] / 1e6),
        Figure("megabytes gained", (max(sizes) - sizes[0]) / 1e6, 50),
    ]


async def _leave(server: Server, one: dict[str, object], after_s: float) -> None:
    async with calling(server, "/v1/completions", json.dumps(one).encode()):
        await asyncio.sleep(after_s)
