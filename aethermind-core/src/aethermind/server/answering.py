"""Running a request's prompts side by side, and telling their answers whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from aethermind.server.observation.records import GenerationRecord
from aethermind.server.openai.answers import Answer, PartCutter

if TYPE_CHECKING:
    from aethermind.engine.output import RequestOutput
    from aethermind.engine.prompt_reader import EnginePrompt
    from aethermind.engine.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.limits import Stay
    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.records import HttpRecord
    from aethermind.server.served_model import ServedModel

__all__ = ["Answering", "told"]


class Answering:
    """The answers to one HTTP request: a prompt or some, each with its own engine request. Used once."""

    def __init__(
        self,
        model: ServedModel,
        record: HttpRecord,
        params: SamplingParams,
        options: RequestOptions,
        stay: Stay,
        *,
        timeout_s: float,
        metrics: Metrics,
    ) -> None:
        self._model = model
        self._record = record
        self._params = params
        self._options = options
        self._stay = stay
        self._num_prompts = 0
        self._timeout_s = timeout_s
        self._metrics = metrics

    def cancel(self) -> bool:
        """End all answers with what there is of them; False if none was open."""
        ended = [self._model.engine.abort(self._id_of(index)) for index in range(self._num_prompts)]
        return any(ended)

    async def whole(self, prompts: Sequence[EnginePrompt]) -> list[RequestOutput]:
        """All answers, finished, in the order of the prompts. The first error ends all."""
        self._num_prompts = len(prompts)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._last(i, prompt)) for i, prompt in enumerate(prompts)]
        return [task.result() for task in tasks]

    async def states(self, prompts: Sequence[EnginePrompt]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """The state of whichever answer has grown, with its prompt's place, until all are finished."""
        self._num_prompts = len(prompts)
        if len(prompts) == 1:
            async with aclosing(self._states_of(0, prompts[0])) as states:
                async for state in states:
                    yield 0, state
            return
        news: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(maxsize=len(prompts))

        async def follow(index: int) -> None:
            try:
                async for state in self._states_of(index, prompts[index]):
                    await news.put((index, state))
            except Exception as error:
                await news.put(error)
            else:
                await news.put(None)

        tasks = [asyncio.create_task(follow(index)) for index in range(len(prompts))]
        try:
            num_open = len(tasks)
            while num_open:
                item = await news.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_open -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()

    async def _last(self, index: int, prompt: EnginePrompt) -> RequestOutput:
        async with aclosing(self._states_of(index, prompt)) as states:
            async for state in states:
                last = state
        return last

    async def _states_of(self, index: int, prompt: EnginePrompt) -> AsyncGenerator[RequestOutput, None]:
        record, params = self._record, self._params
        states = self._model.engine.generate(
            prompt, params, options=self._options, request_id=self._id_of(index), timeout_s=self._timeout_s
        )
        generation = GenerationRecord(self._model.name, record.arrived_s, params)
        record.generations.append(generation)
        if record.prompts is not None:
            record.prompts.append(prompt.token_ids if prompt.text is None else prompt.text)
        try:
            async with aclosing(self._metrics.observed(generation, states)) as observed:
                async for state in observed:
                    self._stay.begin()
                    yield state
        finally:
            self._stay.spend(generation.num_output_tokens)

    def _id_of(self, index: int) -> str:
        return f"{self._record.request_id}-{index}"


async def told(
    states: AsyncIterator[tuple[int, RequestOutput]], answer: Answer, num_answers: int
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a stream: a beginning, parts of the `num_answers` to each prompt as they grow, and an end."""
    for event in answer.begin():
        yield event
    cutters: dict[tuple[int, int], PartCutter] = {}
    last: dict[int, RequestOutput] = {}
    async for place, output in states:
        last[place] = output
        for one in output.outputs:
            part = cutters.setdefault((place, one.index), PartCutter()).cut(one)
            if part is not None:
                for event in answer.part(place * num_answers + one.index, output, part):
                    yield event
    for event in answer.end([last[place] for place in sorted(last)]):
        yield event
