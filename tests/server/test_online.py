"""Many concurrent users with a stream each: every stream equals the answer of a single request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from tests.server.conftest import await_idle, serving

from aethermind import LLM, Runtime
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import EngineProcess
from aethermind.server.access import Tenants

NUM_USERS = 16
KEYS = [f"key-of-{user}" for user in range(NUM_USERS)]
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 2048}


@pytest.fixture(scope="module", params=["process", "inprocess"])
def online(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[str]:
    """The address of a server with a key for every user."""
    in_process = request.param == "inprocess"
    model = LLM(**SETTINGS, runtime=runtime) if in_process else EngineProcess("demo", EngineConfig(**SETTINGS))
    with serving(model, tenants=Tenants.of_keys(KEYS)) as address:
        yield address
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEYS[0]}"}, timeout=30) as http:
            await_idle(http)


@dataclass
class StreamResult:
    """The text and finish reason of each choice of a stream, and all ids in its events."""

    texts: dict[int, str]
    endings: dict[int, str]
    ids: set[str]


class User:
    """A user with a key of their own; all users send different requests."""

    def __init__(self, address: str, index: int) -> None:
        self.index = index
        self.client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEYS[index], max_retries=0)

    @property
    def secret(self) -> str:
        return f"The secret of {self.index} is {self.index**5 + 10**6}."

    @property
    def has_secret(self) -> bool:
        return self.index % 4 == 3

    def opened(self, *, is_stream: bool, is_endless: bool = False) -> Coroutine[Any, Any, Any]:
        """The request: greedy, random, with two answers, or a chat constrained to the secret."""
        common: dict[str, Any] = {"model": "demo", "stream": is_stream}
        if self.has_secret and not is_endless:
            said = [{"role": "user", "content": f"I am {self.index}. What is my secret?"}]
            forced = {"structured_outputs": {"choice": [self.secret]}}
            return self.client.chat.completions.create(messages=said, **common, max_tokens=200, extra_body=forced)
        random = {"temperature": 1.0, "seed": self.index, "n": 2} if self.index % 4 == 2 else {"temperature": 0.0}
        wanted = {"max_tokens": 2000} if is_endless else {"max_tokens": 32, **random}
        prompt = f"User {self.index} asked the fox"
        return self.client.completions.create(prompt=prompt, **common, **wanted, extra_body={"ignore_eos": True})

    async def alone(self) -> dict[int, str]:
        answer = await self.opened(is_stream=False)
        return {one.index: one.message.content if hasattr(one, "message") else one.text for one in answer.choices}


async def follow(stream: Any, barrier: asyncio.Barrier | None = None) -> StreamResult:
    """Read a stream to its end; after the first event wait until all users have one."""
    result = StreamResult({}, {}, set())
    async for event in stream:
        result.ids.add(event.id)
        for one in event.choices:
            text = one.delta.content if hasattr(one, "delta") else one.text
            result.texts[one.index] = result.texts.get(one.index, "") + (text or "")
            if one.finish_reason is not None:
                result.endings[one.index] = one.finish_reason
        if barrier is not None:
            await barrier.wait()
            barrier = None
    return result


def together(address: str, scenario: Any) -> None:
    async def run() -> None:
        users = [User(address, index) for index in range(NUM_USERS)]
        async with AsyncExitStack() as stack:
            for user in users:
                await stack.enter_async_context(user.client)
            async with asyncio.timeout(60):
                await scenario(users)

    asyncio.run(run())


def test_concurrent_streams_equal_the_answers_of_single_requests(online: str) -> None:
    async def scenario(users: Sequence[User]) -> None:
        expected = [await user.alone() for user in users]
        barrier = asyncio.Barrier(NUM_USERS)

        async def ask(user: User) -> StreamResult:
            return await follow(await user.opened(is_stream=True), barrier)

        answers = await asyncio.gather(*map(ask, users))
        assert [result.texts for result in answers] == expected
        assert all(
            result.texts == {0: user.secret} for user, result in zip(users, answers, strict=True) if user.has_secret
        )
        assert all(len(result.ids) == 1 for result in answers)
        assert len(set.union(*(result.ids for result in answers))) == NUM_USERS

    together(online, scenario)


def test_cancelled_and_disconnected_requests_do_not_affect_others(online: str) -> None:
    async def scenario(users: Sequence[User]) -> None:
        expected = [await user.alone() for user in users[::3]]
        barrier = asyncio.Barrier(NUM_USERS)

        async def read_all(user: User) -> StreamResult:
            return await follow(await user.opened(is_stream=True), barrier)

        async def disconnect(user: User) -> None:
            async with await user.opened(is_stream=True, is_endless=True) as stream:
                await anext(stream)
                await barrier.wait()

        async def cancel(user: User) -> StreamResult:
            async with await user.opened(is_stream=True, is_endless=True) as stream:
                path = f"/requests/{(await anext(stream)).id}"
                await barrier.wait()
                with pytest.raises(openai.NotFoundError):
                    await users[user.index - 1].client.delete(path, cast_to=object)
                await user.client.delete(path, cast_to=object)
                return await follow(stream)

        results = await asyncio.gather(*((read_all, disconnect, cancel)[user.index % 3](user) for user in users))
        assert [result.texts for result in results[::3]] == expected
        assert all(result.endings == {0: "abort"} for result in results[2::3])

    together(online, scenario)
