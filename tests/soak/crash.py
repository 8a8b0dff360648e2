"""The engine's process dies under load: who waits is told, who comes is told to come again, and it comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx
from tests.soak.client import Answer, ask
from tests.soak.load import body
from tests.soak.report import Figure
from tests.soak.server import Server

__all__ = ["crash"]

_NUM_CLIENTS = 8
_BACK_S = 10.0
"""A second before the restart, and the start of a process with the demo model."""

_PATIENCE_S = 60.0
_BROKEN_OFF = "error event: engine_dead"


async def crash(server: Server, num_rounds: int) -> list[Figure]:
    """Kill the engine's process under the streams of eight clients, again and again.

    Each asks again when it was answered. A round in which all had just been answered is none.
    """
    turn = num_hits = failures = 0
    told_s = refused_s = back_s = 0.0
    while num_hits < num_rounds and not failures:
        turn += 1
        (engine,) = server.engine_pids()
        is_dead = asyncio.Event()
        clients = [asyncio.create_task(_last_answer(server, turn * 100 + i, is_dead)) for i in range(_NUM_CLIENTS)]
        while not (await asyncio.to_thread(server.samples))["num_requests_running"]:
            await asyncio.sleep(0.01)
        os.kill(engine, signal.SIGKILL)
        is_dead.set()
        killed_s = time.perf_counter()
        refused = await ask(server, body(server, 0))
        if refused.status == 503:
            refused_s = max(refused_s, refused.seconds)
        told = await asyncio.gather(*clients)
        told_s = max(told_s, time.perf_counter() - killed_s)
        num_hits += any(one.failure == _BROKEN_OFF for one in told)
        failures += sum(one.failure not in (_BROKEN_OFF, "HTTP 503", None) for one in told)
        is_back = await _until_ready(server)
        back_s = max(back_s, time.perf_counter() - killed_s)
        again = await ask(server, body(server, turn))
        failures += not is_back or again.failure is not None
    return [
        Figure("times killed under open streams", num_hits),
        Figure("clients that were told something else, or no way back", failures, 0),
        Figure("seconds until streams have their error", told_s, 2, True),
        Figure("seconds until a newcomer has its 503", refused_s, 2, True),
        Figure("seconds until it serves again", back_s, _BACK_S, True),
    ]


async def _last_answer(server: Server, index: int, is_dead: asyncio.Event) -> Answer:
    """Ask until something goes wrong. No two clients' streams are of one length, so that they do not end at once."""
    while True:
        answer = await ask(server, body(server, index, max_tokens=200 + index % 100 * 25))
        if answer.failure is not None or is_dead.is_set():
            return answer


async def _until_ready(server: Server) -> bool:
    start_s = time.perf_counter()
    async with httpx.AsyncClient(base_url=server.url, timeout=_PATIENCE_S, trust_env=False) as http:
        while time.perf_counter() - start_s < _PATIENCE_S:
            if (await http.get("/ready")).status_code == 200:
                return True
            await asyncio.sleep(0.05)
    return False
