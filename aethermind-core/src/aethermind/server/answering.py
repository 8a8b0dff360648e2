"""Running a request's prompts side by side, and telling their answers whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from aethermind.server.framing import EventBatch
from aethermind.server.observation.records import GenerationRecord
from aethermind.server.openai.answers import Answer, PartCutter

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import EnginePrompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.admission import AdmissionTicket
    from aethermind.server.framing import Event
    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.records import HttpRecord
    from aethermind.server.served_model import ServedModel

    _State = tuple[int, RequestOutput]

__all__ = ["Answering", "stream_events"]

_STREAM_HOLD_S = 1 / 30
"""Seconds over which tokens of a stream are coalesced, too short to be noticed. Where steps take half of it or longer,
each token is an event of its own (see `OutputCoalescer`). Where steps are faster, an event costs more than a token.
"""

_WHOLE_HOLD_S = 0.25
"""The same for responses that are not streamed: the interval at which metrics count tokens."""


class Answering:
    """The answers to one HTTP request: a prompt or some, each with its own engine request. Used once."""

    def __init__(
        self,
        model: ServedModel,
        record: HttpRecord,
        params: SamplingParams,
        options: RequestOptions,
        ticket: AdmissionTicket,
        *,
        timeout_s: float,
        metrics: Metrics,
    ) -> None:
        self._model = model
        self._record = record
        self._params = params
        self._options = options
        self._ticket = ticket
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
        if len(prompts) == 1:
            return [await self._last(0, prompts[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._last(i, prompt)) for i, prompt in enumerate(prompts)]
        return [task.result() for task in tasks]

    def states(self, prompts: Sequence[EnginePrompt]) -> AsyncGenerator[_State, None]:
        """The state of whichever answer has grown, with its prompt's place, until all are finished."""
        self._num_prompts = len(prompts)
        return self._states_of(0, prompts[0]) if len(prompts) == 1 else self._merged(prompts)

    async def _merged(self, prompts: Sequence[EnginePrompt]) -> AsyncGenerator[_State, None]:
        news: asyncio.Queue[_State | Exception | None] = asyncio.Queue(maxsize=len(prompts))

        async def follow(index: int) -> None:
            try:
                async for state in self._states_of(index, prompts[index]):
                    await news.put(state)
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
            async for _, state in states:
                last = state
        return last

    async def _states_of(self, index: int, prompt: EnginePrompt) -> AsyncGenerator[_State, None]:
        record, params = self._record, self._params
        states = self._model.engine.generate(
            prompt,
            params,
            options=self._options,
            request_id=self._id_of(index),
            timeout_s=self._timeout_s,
            hold_s=_STREAM_HOLD_S if self._record.is_stream else _WHOLE_HOLD_S,
        )
        generation = GenerationRecord(self._model.name, record.arrived_s, params)
        record.generations.append(generation)
        if record.prompts is not None:
            record.prompts.append(prompt.token_ids if prompt.text is None else prompt.text)
        try:
            with self._metrics.observing(generation):
                async with aclosing(states):
                    async for state in states:
                        self._ticket.leave_queue()
                        self._metrics.update(generation, state)
                        yield index, state
        finally:
            self._ticket.charge(generation.num_output_tokens)

    def _id_of(self, index: int) -> str:
        return f"{self._record.request_id}-{index}"


async def stream_events(
    first: Awaitable[_State], others: AsyncIterator[_State], answer: Answer, *, num_prompts: int, num_answers: int
) -> AsyncGenerator[EventBatch, None]:
    """The events of a stream: a beginning, parts of the `num_answers` to each prompt as they grow, and an end, which
    comes with the last part.
    """
    yield EventBatch(list(answer.begin()))
    num_open = num_prompts
    cutters: dict[int, PartCutter] = {}
    last: dict[int, RequestOutput] = {}
    state: _State | None = await first
    while state is not None:
        place, output = state
        last[place] = output
        events: list[Event] = []
        for one in output.outputs:
            index = place * num_answers + one.index
            cutter = cutters.get(index)
            if cutter is None:
                cutter = cutters[index] = PartCutter()
            part = cutter.cut(one)
            if part is not None:
                events += answer.part(index, output, part)
        num_open -= output.finished
        if not num_open:
            events += answer.end([last[place] for place in sorted(last)])
        yield EventBatch(events, is_last=not num_open)
        state = await anext(others, None)
