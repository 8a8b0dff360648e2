"""The engine's process dies under load: who waits is told, who comes is told to come again, and it comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx
from tests.soak.client import ask
from tests.soak.load import body
from tests.soak.report import Figure
from tests.soak.server import Server

__all__ = ["crash"]

_NUM_OPEN = 8
_BACK_S = 10.0
"""A second before the restart, and the start of a process with the demo model."""

_PATIENCE_S = 60.0


async def crash(server: Server, num_rounds: int) -> list[Figure]:
    """Kill the engine's process under eight streams, again and again."""
    failures, told_s, refused_s, back_s = 0, 0.0, 0.0, 0.0
    for turn in range(num_rounds):
        (engine,) = server.engine_pids()
        streams = [
            asyncio.create_task(ask(server, body(server, turn * 100 + i, max_tokens=400))) for i in range(_NUM_OPEN)
        ]
        while (await asyncio.to_thread(server.samples))["num_requests_running"] < _NUM_OPEN:
            await asyncio.sleep(0.01)
        os.kill(engine, signal.SIGKILL)
        killed_s = time.perf_counter()
        refused = await ask(server, body(server, 0))
        if refused.status == 503:
            refused_s = max(refused_s, refused.seconds)
        told = await asyncio.gather(*streams)
        told_s = max(told_s, time.perf_counter() - killed_s)
        failures += sum(one.failure != "error event: engine_dead" for one in told)
        is_back = await _until_ready(server)
        back_s = max(back_s, time.perf_counter() - killed_s)
        again = await ask(server, body(server, turn))
        failures += not is_back or again.failure is not None
    return [
        Figure("times killed", num_rounds),
        Figure("streams without an error event, or no way back", failures, 0),
        Figure("seconds until streams have their error", told_s, 2, True),
        Figure("seconds until a newcomer has its 503", refused_s, 2, True),
        Figure("seconds until it serves again", back_s, _BACK_S, True),
    ]


async def _until_ready(server: Server) -> bool:
    start_s = time.perf_counter()
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        while time.perf_counter() - start_s < _PATIENCE_S:
            if (await http.get("/ready")).status_code == 200:
                return True
            await asyncio.sleep(0.05)
    return False
