"""`CancelScope` cancels its body like `asyncio.timeout`, and continues behind it."""

from __future__ import annotations

import asyncio

import pytest

from aethermind.server.cancellation import CancelScope


def test_the_first_future_that_is_done_cancels_the_body() -> None:
    async def scenario() -> list[str]:
        events: list[str] = []
        one, other = asyncio.Future[None](), asyncio.Future[None]()
        asyncio.get_running_loop().call_soon(other.set_result, None)
        with CancelScope(one, other):
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")
        await asyncio.sleep(0)
        events.append("continued")
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        one.set_result(None)
        await asyncio.sleep(0)  # the callback is removed
        return events

    assert asyncio.run(scenario()) == ["cancelled", "continued"]


def test_a_body_that_ends_first_keeps_its_result_or_error() -> None:
    async def scenario() -> str:
        gone = asyncio.Future[None]()
        with pytest.raises(ValueError, match="own"), CancelScope(gone):
            raise ValueError("own")
        with CancelScope(gone):
            await asyncio.sleep(0)
            result = "whole"
        gone.set_result(None)
        await asyncio.sleep(0)
        return result

    assert asyncio.run(scenario()) == "whole"


def test_a_future_that_is_already_done_cancels_at_the_first_await() -> None:
    async def scenario() -> list[str]:
        events = ["started"]
        gone = asyncio.Future[None]()
        gone.set_result(None)
        with CancelScope(gone):
            await asyncio.Event().wait()
        return [*events, "continued"]

    assert asyncio.run(scenario()) == ["started", "continued"]


def test_a_cancellation_from_outside_propagates_even_at_the_same_moment() -> None:
    async def scenario(*, is_both: bool) -> None:
        gone = asyncio.Future[None]()

        async def work() -> None:
            with CancelScope(gone):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        if is_both:
            gone.set_result(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario(is_both=False))
    asyncio.run(scenario(is_both=True))


def test_a_timeout_around_the_scope_propagates() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(0):
            with CancelScope(asyncio.Future[None]()):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
