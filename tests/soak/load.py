"""Load that a server has to carry: many streams, more than it takes, people who leave, and one who stops reading."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

from tests.soak.client import Answer, ask, calling
from tests.soak.report import Figure, percentile
from tests.soak.server import Server

__all__ = ["body", "cancel", "disconnects", "overload", "stalled_reader", "streams", "until_idle"]

NUM_STREAMS = 64
OVERLOAD_ROOM = 16
"""Answers that the overloaded server takes at once; four times as many clients ask."""

_PATIENCE_S = 20.0


def body(server: Server, index: int, *, max_tokens: int = 48, **members: Any) -> dict[str, Any]:
    """A request of its own: no two have the same prompt."""
    ask = {"model": server.model, "prompt": f"Story {index}: Once upon a time", "max_tokens": max_tokens}
    return {**ask, "seed": index, "ignore_eos": True, "stream": True, **members}


async def streams(server: Server, num_rounds: int) -> list[Figure]:
    """64 streams at a time: each is whole, and says what the same question gets without streaming."""
    failures = mismatches = 0
    seconds = []
    for turn in range(num_rounds):
        bodies = [body(server, turn * NUM_STREAMS + i) for i in range(NUM_STREAMS)]
        told = await asyncio.gather(*(ask(server, one) for one in bodies))
        whole = await asyncio.gather(*(ask(server, {**one, "stream": False}) for one in bodies))
        failures += sum(one.failure is not None for one in (*told, *whole))
        mismatches += sum(one.text != other.text for one, other in zip(told, whole, strict=True))
        seconds += [one.seconds for one in told]
    return [
        Figure("streams", num_rounds * NUM_STREAMS),
        Figure("failures", failures, 0),
        Figure("streams that are not the whole answer", mismatches, 0),
        Figure("seconds of a stream, p99", percentile(seconds, 0.99)),
    ]


async def overload(server: Server, num_seconds: float) -> list[Figure]:
    """Four times as many clients as the server takes, each asking again at once when it was answered or refused."""
    end_s = time.perf_counter() + num_seconds
    answers: list[Answer] = []
    most_held = 0.0

    async def client(index: int) -> None:
        turn = 0
        while time.perf_counter() < end_s:
            answer = await ask(server, body(server, index * 10_000 + turn, max_tokens=32))
            answers.append(answer)
            turn += 1
            if answer.status != 200:
                await asyncio.sleep(random.uniform(0.2, 0.6))

    async def watch() -> None:
        nonlocal most_held
        while time.perf_counter() < end_s:
            now = await asyncio.to_thread(server.samples)
            most_held = max(most_held, now["num_requests_running"] + now["num_requests_waiting"])
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(client(i) for i in range(4 * OVERLOAD_ROOM)))
    refused = [one for one in answers if one.status in (429, 503)]
    admitted = [one for one in answers if one.status == 200]
    return [
        Figure("answers", len(admitted)),
        Figure("refusals", len(refused)),
        Figure("admitted and failed", sum(one.failure is not None for one in admitted), 0),
        Figure("neither answered nor refused", len(answers) - len(admitted) - len(refused), 0),
        Figure("most held at once", most_held, OVERLOAD_ROOM),
        Figure("milliseconds of a refusal, p50", percentile([one.seconds * 1e3 for one in refused], 0.5)),
        Figure("milliseconds of a refusal, p99", percentile([one.seconds * 1e3 for one in refused], 0.99), 50, True),
    ]


async def disconnects(server: Server, count: int) -> list[Figure]:
    """Clients that hang up at any moment: before the answer, in it, after it. Nothing of them may stay."""
    seats = asyncio.Semaphore(32)
    chance = random.Random(7)

    async def leave(index: int, num_events: int) -> None:
        async with seats:
            data = json.dumps(body(server, index, max_tokens=40, n=chance.choice((1, 1, 2)))).encode()
            async with calling(server, "/v1/completions", data) as call:
                if num_events < 0:  # before the request was read
                    return
                if num_events == 0:
                    await asyncio.sleep(chance.uniform(0, 0.2))
                    return
                await call.status()
                async for _ in _first(call.events(), num_events):
                    pass

    await asyncio.gather(*(leave(index, chance.randint(-1, 45)) for index in range(count)))
    is_idle, seconds = await until_idle(server)
    good = await ask(server, body(server, count))
    # The engine obeys in order: with this answer it has heard of everybody, the last one to hang up too.
    await until_idle(server)
    now = await asyncio.to_thread(server.samples)
    return [
        Figure("disconnects", count),
        Figure("blocks that are not free again", now["num_kv_blocks"] - now["num_free_kv_blocks"], 0),
        Figure("zombies", 0 if is_idle else now["http_requests_open"] - 1, 0),
        Figure("failures of the next request", good.failure is not None, 0),
        Figure("seconds until all was free", seconds),
    ]


async def cancel(server: Server, count: int) -> list[Figure]:
    """How long an answer's blocks are held after its client has left."""
    taken = []
    for index in range(count):
        data = json.dumps(body(server, index, max_tokens=400)).encode()
        async with calling(server, "/v1/completions", data) as call:
            assert await call.status() == 200
            async for _ in _first(call.events(), 3):
                pass
        is_idle, seconds = await until_idle(server)
        assert is_idle
        taken.append(seconds * 1e3)
    return [
        Figure("cancelled", count),
        Figure("milliseconds until blocks are free, p50", percentile(taken, 0.5)),
        Figure("milliseconds until blocks are free, p99", percentile(taken, 0.99), 500, True),
    ]


async def stalled_reader(server: Server, num_rounds: int) -> list[Figure]:
    """What a client that stops reading costs eight others, against one that reads the same.

    Either computes the same. Rounds come in pairs, each the other way round than the one before, so that a machine
    that gets slower or faster meanwhile favours neither.
    """
    gaps: dict[bool, list[float]] = {False: [], True: []}
    failures = 0
    heavy = body(server, 0, max_tokens=350, n=8, logprobs=20)
    for is_stalled in ((False, True, True, False) * num_rounds)[: 2 * num_rounds]:
        async with calling(server, "/v1/completions", json.dumps(heavy).encode(), receive_bytes=4096) as call:
            assert await call.status() == 200
            reading = None if is_stalled else asyncio.create_task(call.reader.read())
            others = await asyncio.gather(*(ask(server, body(server, i + 1, max_tokens=150)) for i in range(8)))
            if reading is not None:
                reading.cancel()
        failures += sum(one.failure is not None for one in others)
        between = [late - early for one in others for early, late in pairwise(one.pieces_s)]
        gaps[is_stalled].append(percentile(between, 0.5))
        await until_idle(server)
    ratios = [stalled / usual for usual, stalled in zip(gaps[False], gaps[True], strict=True)]
    slower = percentile(ratios, 0.5) - 1
    return [
        Figure("pairs of rounds", len(gaps[True])),
        Figure("failures of others", failures, 0),
        Figure("milliseconds between tokens beside a reader", percentile(gaps[False], 0.5) * 1e3),
        Figure("slower beside a stalled reader, percent", slower * 100, 10, True),
    ]


async def _first(events: AsyncIterator[dict[str, Any]], count: int) -> AsyncIterator[dict[str, Any]]:
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


async def until_idle(server: Server) -> tuple[bool, float]:
    """Whether the server gets idle, and how long it took."""
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < _PATIENCE_S:
        if await asyncio.to_thread(server.is_idle):
            return True, time.perf_counter() - start_s
        await asyncio.sleep(0.005)
    return False, _PATIENCE_S
