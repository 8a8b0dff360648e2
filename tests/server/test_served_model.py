"""A served model tokenises prompts without blocking the event loop."""

from __future__ import annotations

import asyncio

from aethermind import LLM
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.server.served_model import ServedModel


def test_tokenising_many_short_texts_does_not_block_the_event_loop(llm: LLM) -> None:
    async def read() -> int:
        model = ServedModel.of("demo", llm, AsyncEngine(llm.engine))
        reading = asyncio.create_task(model.read_all(["a fox"] * 50, "prompt"))
        num_turns = 0
        while not reading.done():
            num_turns += 1
            await asyncio.sleep(0)
        assert len(reading.result()) == 50
        return num_turns

    assert asyncio.run(read()) >= 50
