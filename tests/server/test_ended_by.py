"""Work that others end: it is cancelled as if by `asyncio.timeout`, and what follows goes on."""

from __future__ import annotations

import asyncio

import pytest

from aethermind.server.ended_by import EndedBy


def test_work_ends_with_whichever_comes_first() -> None:
    async def scenario() -> list[str]:
        happened: list[str] = []
        one, other = asyncio.Future[None](), asyncio.Future[None]()
        asyncio.get_running_loop().call_soon(other.set_result, None)
        with EndedBy(one, other):
            try:
                await asyncio.Event().wait()
            finally:
                happened.append("cancelled")
        await asyncio.sleep(0)
        happened.append("goes on")
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        one.set_result(None)
        await asyncio.sleep(0)  # nobody listens any more
        return happened

    assert asyncio.run(scenario()) == ["cancelled", "goes on"]


def test_work_that_ends_by_itself_gives_its_result_or_its_error() -> None:
    async def scenario() -> str:
        gone = asyncio.Future[None]()
        with pytest.raises(ValueError, match="own"), EndedBy(gone):
            raise ValueError("own")
        with EndedBy(gone):
            await asyncio.sleep(0)
            result = "whole"
        gone.set_result(None)
        await asyncio.sleep(0)
        return result

    assert asyncio.run(scenario()) == "whole"


def test_who_has_left_before_ends_it_at_its_first_pause() -> None:
    async def scenario() -> list[str]:
        happened = ["begins"]
        gone = asyncio.Future[None]()
        gone.set_result(None)
        with EndedBy(gone):
            await asyncio.Event().wait()
        return [*happened, "goes on"]

    assert asyncio.run(scenario()) == ["begins", "goes on"]


def test_a_cancellation_from_outside_passes_even_at_the_same_moment() -> None:
    async def scenario(*, is_both: bool) -> None:
        gone = asyncio.Future[None]()

        async def work() -> None:
            with EndedBy(gone):
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


def test_a_timeout_around_it_is_told_apart() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(0):
            with EndedBy(asyncio.Future[None]()):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
