"""Requests that tasks wait for, without an engine behind them."""

from __future__ import annotations

import asyncio

from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.serving.engine_client import RequestStreams
from aethermind.errors import EngineDeadError


def aborted(name: str) -> RequestOutput:
    return RequestOutput(
        name, None, [1], [CompletionOutput(0, "", [], None, "abort", None)], True, RequestMetrics(0.0, None, 1.0)
    )


def test_a_request_that_is_still_being_read_is_aborted_when_it_was_added() -> None:
    events: list[str] = []

    async def scenario() -> None:
        requests = RequestStreams(EngineDeadError("not started"))
        requests.failure = None
        is_read = asyncio.Event()

        async def add(name: str) -> None:
            await is_read.wait()
            events.append(f"added {name}")

        def abort(name: str) -> None:
            events.append(f"aborted {name}")
            requests.deliver(name, aborted(name))

        async def follow() -> list[RequestOutput]:
            return [one async for one in requests.follow("mine", add, lambda _: None, timeout_s=None)]

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        assert not requests.abort("another", abort)
        assert requests.abort("mine", abort)
        assert events == []
        is_read.set()
        assert await task == [aborted("mine")]
        assert not requests.abort("mine", abort)

    asyncio.run(scenario())
    assert events == ["added mine", "aborted mine"]
