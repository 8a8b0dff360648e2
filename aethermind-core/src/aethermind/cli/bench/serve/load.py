"""Requests sent to a server: so many at a time, or each when it is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.cli.bench.serve.outcome import Outcome
    from aethermind.cli.bench.serve.workload import Ask

__all__ = ["Send", "send_all"]

Send = Callable[["Ask", float | None], Awaitable["Outcome"]]
"""Asks once. The second argument is when it was due, by `time.perf_counter`; None is now."""


async def send_all(
    asks: Sequence[Ask], send: Send, *, concurrency: int | None, on_outcome: Callable[[Outcome], None]
) -> None:
    """Send every request, `concurrency` at a time, or with None each at its arrival, however many are open then."""
    async with asyncio.TaskGroup() as group:
        if concurrency is not None:
            waiting = iter(asks)
            for _ in range(min(concurrency, len(asks))):
                group.create_task(_one_after_another(waiting, send, on_outcome))
            return
        start_s = time.perf_counter()
        for ask in asks:
            due_s = start_s + (ask.arrival_s or 0.0)
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            group.create_task(_one(ask, due_s, send, on_outcome))


async def _one_after_another(waiting: Iterator[Ask], send: Send, on_outcome: Callable[[Outcome], None]) -> None:
    for ask in waiting:
        await _one(ask, None, send, on_outcome)


async def _one(ask: Ask, due_s: float | None, send: Send, on_outcome: Callable[[Outcome], None]) -> None:
    on_outcome(await send(ask, due_s))
