"""Many users at once, each with a stream: everyone gets what they would get alone, and nothing of anyone else."""

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
from aethermind.server.tenants import Tenants

NUM_USERS = 16
KEYS = [f"key-of-{user}" for user in range(NUM_USERS)]
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 2048}


@pytest.fixture(scope="module", params=["process", "inprocess"])
def online(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[str]:
    """The address of a server to which every user has a key."""
    in_process = request.param == "inprocess"
    model = LLM(**SETTINGS, runtime=runtime) if in_process else EngineProcess("demo", EngineConfig(**SETTINGS))
    with serving(model, tenants=Tenants.of_keys(KEYS)) as address:
        yield address
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEYS[0]}"}, timeout=30) as http:
            await_idle(http)


@dataclass
class EventBatch:
    """What a stream said: the text of each choice, how each ended, and every id that occurred in it."""

    texts: dict[int, str]
    endings: dict[int, str]
    ids: set[str]


class User:
    """One of them, with a key and a request of their own; no two requests are alike."""

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
        """The request: a greedy one, a random one, two answers, or a chat that can only say the secret."""
        common: dict[str, Any] = {"model": "demo", "stream": is_stream}
        if self.has_secret and not is_endless:
            said = [{"role": "user", "content": f"I am {self.index}. What is my secret?"}]
            forced = {"structured_outputs": {"choice": [self.secret]}}
            return self.client.chat.completions.create(messages=said, **common, max_tokens=200, extra_body=forced)
        by_chance = {"temperature": 1.0, "seed": self.index, "n": 2} if self.index % 4 == 2 else {"temperature": 0.0}
        wanted = {"max_tokens": 2000} if is_endless else {"max_tokens": 32, **by_chance}
        prompt = f"User {self.index} asked the fox"
        return self.client.completions.create(prompt=prompt, **common, **wanted, extra_body={"ignore_eos": True})

    async def alone(self) -> dict[int, str]:
        answer = await self.opened(is_stream=False)
        return {one.index: one.message.content if hasattr(one, "message") else one.text for one in answer.choices}


async def follow(stream: Any, meeting: asyncio.Barrier | None = None) -> EventBatch:
    """Read a stream to its end; after the first event wait until everybody has one."""
    told = EventBatch({}, {}, set())
    async for event in stream:
        told.ids.add(event.id)
        for one in event.choices:
            text = one.delta.content if hasattr(one, "delta") else one.text
            told.texts[one.index] = told.texts.get(one.index, "") + (text or "")
            if one.finish_reason is not None:
                told.endings[one.index] = one.finish_reason
        if meeting is not None:
            await meeting.wait()
            meeting = None
    return told


def together(address: str, scenario: Any) -> None:
    async def run() -> None:
        users = [User(address, index) for index in range(NUM_USERS)]
        async with AsyncExitStack() as stack:
            for user in users:
                await stack.enter_async_context(user.client)
            async with asyncio.timeout(60):
                await scenario(users)

    asyncio.run(run())


def test_each_stream_is_what_the_request_gets_alone(online: str) -> None:
    async def scenario(users: Sequence[User]) -> None:
        expected = [await user.alone() for user in users]
        meeting = asyncio.Barrier(NUM_USERS)

        async def ask(user: User) -> EventBatch:
            return await follow(await user.opened(is_stream=True), meeting)

        answers = await asyncio.gather(*map(ask, users))
        assert [told.texts for told in answers] == expected
        assert all(told.texts == {0: user.secret} for user, told in zip(users, answers, strict=True) if user.has_secret)
        assert all(len(told.ids) == 1 for told in answers)
        assert len(set.union(*(told.ids for told in answers))) == NUM_USERS

    together(online, scenario)


def test_who_cancels_or_leaves_disturbs_nobody(online: str) -> None:
    async def scenario(users: Sequence[User]) -> None:
        expected = [await user.alone() for user in users[::3]]
        meeting = asyncio.Barrier(NUM_USERS)

        async def stay(user: User) -> EventBatch:
            return await follow(await user.opened(is_stream=True), meeting)

        async def leave(user: User) -> None:
            async with await user.opened(is_stream=True, is_endless=True) as stream:
                await anext(stream)
                await meeting.wait()

        async def cancel(user: User) -> EventBatch:
            async with await user.opened(is_stream=True, is_endless=True) as stream:
                path = f"/requests/{(await anext(stream)).id}"
                await meeting.wait()
                with pytest.raises(openai.NotFoundError):
                    await users[user.index - 1].client.delete(path, cast_to=object)
                await user.client.delete(path, cast_to=object)
                return await follow(stream)

        results = await asyncio.gather(*((stay, leave, cancel)[user.index % 3](user) for user in users))
        assert [told.texts for told in results[::3]] == expected
        assert all(told.endings == {0: "abort"} for told in results[2::3])

    together(online, scenario)
