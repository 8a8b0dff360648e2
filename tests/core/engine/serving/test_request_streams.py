"""Open requests of an event loop, without an engine."""

from __future__ import annotations

import asyncio

from aethermind.engine.requests.output import RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputDelta
from aethermind.engine.serving.engine_client import RequestStreams
from aethermind.errors import EngineDeadError


def aborted(name: str) -> OutputDelta:
    return OutputDelta(name, [CompletionDelta(0, "", [], None, 0, "abort")], True, RequestMetrics(0.0, None, 1.0), 1)


def test_a_request_aborted_while_its_prompt_is_read_ends_once_it_is_added() -> None:
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

        async def follow() -> list[OutputDelta]:
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


def test_deltas_are_merged_while_their_reader_is_slow() -> None:
    def delta(token_id: int, *, finished: bool = False) -> OutputDelta:
        completion = CompletionDelta(0, f"{token_id} ", [token_id], None, token_id, "stop" if finished else None)
        return OutputDelta("mine", [completion], finished, RequestMetrics(0.0, None, None), 1)

    async def scenario() -> list[OutputDelta]:
        requests = RequestStreams(EngineDeadError("not started"))
        requests.failure = None

        async def add(name: str) -> None:
            requests.deliver(name, delta(1))

        received = []
        async for one in requests.follow("mine", add, lambda _: None, timeout_s=None):
            received.append(one)
            if len(received) == 1:
                for token_id in (2, 3, 4):
                    requests.deliver("mine", delta(token_id, finished=token_id == 4))
                requests.deliver("mine", delta(5))  # after the end
        return received

    first, rest = asyncio.run(scenario())
    assert (first.completions[0].text, rest.completions[0].text) == ("1 ", "2 3 4 ")
    assert (rest.completions[0].token_ids, rest.completions[0].num_tokens, rest.finished) == ([2, 3, 4], 4, True)
