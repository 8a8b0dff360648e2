"""A run against one server: connect, find out what it takes, send everything. Needs httpx."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from aethermind.cli.bench.serve.load import send_all
from aethermind.cli.bench.serve.outcome import Outcome, Run
from aethermind.cli.bench.serve.target import connect, find_target
from aethermind.cli.bench.serve.workload import Ask
from aethermind.errors import InvalidArgumentError

__all__ = ["measure"]


async def measure(
    run: Run, asks: Sequence[Ask], *, concurrency: int | None, limit_s: float, on_progress: Callable[[int, int], None]
) -> None:
    """Send `asks` and record them in `run`. InvalidArgumentError, before any is sent, where the server takes none.

    `concurrency` at a time, or with None each at its arrival. `limit_s` is how long an answer may take.
    """

    def note(outcome: Outcome) -> None:
        run.outcomes.append(outcome)
        on_progress(len(run.outcomes), len(asks))

    async with connect(run.url, run.api_key) as client:
        try:
            async with asyncio.timeout(limit_s):
                target = await find_target(client, run.model, run.endpoint)
        except TimeoutError:
            raise InvalidArgumentError(
                f"The server at {run.url} has not answered in {limit_s:g} s. Correct --url, or allow it more with "
                "--request-timeout."
            ) from None
        run.model = target.model
        start_s = time.perf_counter()
        try:
            await send_all(
                asks, lambda ask, due_s: target.send(ask, due_s, limit_s), concurrency=concurrency, on_outcome=note
            )
        finally:
            run.duration_s = time.perf_counter() - start_s
