"""Generates the completions of an HTTP request: runs its prompts concurrently, streams their events or collects them.

Each endpoint implements `ResponseBuilder`, which builds its response body or its events.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.engine.requests.output import RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputAccumulator, OutputDelta
from aethermind.server.observation.observer import GenerationRecord
from aethermind.server.sse import UNNAMED, Event, EventBatch, Framing

if TYPE_CHECKING:
    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.prompt_reader import EnginePrompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.admission import AdmissionTicket
    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.observer import HttpRecord
    from aethermind.server.served_model import ServedModel

    _Delta = tuple[int, OutputDelta]
    """The index of a prompt, and new output of its completions."""

__all__ = [
    "Generation",
    "PromptState",
    "ResponseBuilder",
    "aborted_deltas",
    "aborted_outputs",
    "response_id",
    "stream_events",
    "token_usage",
]


@dataclass(slots=True)
class PromptState:
    """One prompt of a request, with the totals over its deltas that events and token usage need. Mutable."""

    text: str | None
    token_ids: Sequence[int]
    logprobs: list[dict[int, Logprob] | None] | None = None
    num_output_tokens: int = 0
    """Output tokens of all completions to the prompt."""
    num_cached_tokens: int = 0

    @classmethod
    def initial(cls, prompt: EnginePrompt) -> PromptState:
        """The state of a prompt before its first delta."""
        return cls(prompt.text, prompt.token_ids)

    @classmethod
    def final(cls, output: RequestOutput) -> PromptState:
        """The state of a prompt after all deltas of this output."""
        num_output_tokens = sum(completion.num_tokens for completion in output.outputs)
        return cls(
            output.prompt, output.prompt_token_ids, output.prompt_logprobs, num_output_tokens, output.num_cached_tokens
        )

    def add(self, delta: OutputDelta) -> None:
        """Update the state by the next delta."""
        self.num_output_tokens += sum(len(completion.token_ids) for completion in delta.completions)
        self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            self.logprobs = delta.prompt_logprobs


class ResponseBuilder(ABC):
    """Builds an endpoint's response to one request: its body, or its events if it is streamed."""

    framing: Framing = UNNAMED
    """How events are encoded."""

    @abstractmethod
    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The body of a response that is not streamed. `outputs` are in the order of the prompts."""

    @abstractmethod
    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        """The events for a delta of the choice `index`, a completion to `prompt`."""

    def initial_events(self) -> Iterable[Event]:
        """The events before the first delta."""
        return ()

    @abstractmethod
    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        """The events after the last delta."""


def response_id(request_id: str, prefix: str) -> str:
    """The id of a response object, such as `chatcmpl-…`. A client can cancel the request by this id, too."""
    return prefix + request_id.removeprefix("req_")


def token_usage(prompts: Sequence[PromptState]) -> dict[str, Any]:
    """Token counts, in OpenAI's names."""
    num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
    num_output = sum(prompt.num_output_tokens for prompt in prompts)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(prompt.num_cached_tokens for prompt in prompts)},
    }


_STREAM_HOLD_S = 1 / 30
"""Seconds over which tokens of a stream are coalesced, too short to be noticed. If steps take half of this or longer,
each token is an event of its own (see `OutputCoalescer`). If steps are faster, an event costs more than a token.
"""

_FULL_RESPONSE_HOLD_S = 0.25
"""Seconds over which tokens of other responses are coalesced: the interval at which metrics count them."""


class Generation:
    """Generates the completions of one HTTP request. Each prompt is an engine request of its own. Used once."""

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
        """Abort all completions, which end with their output so far; False if none was open."""
        aborted = [self._model.engine.abort(self._request_id(index)) for index in range(self._num_prompts)]
        return any(aborted)

    async def outputs(self, prompts: Sequence[EnginePrompt]) -> list[RequestOutput]:
        """Wait for all completions; returns the outputs in the order of the prompts. The first error cancels all."""
        self._num_prompts = len(prompts)
        if len(prompts) == 1:
            return [await self._final_output(0, prompts[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._final_output(i, prompt)) for i, prompt in enumerate(prompts)]
        return [task.result() for task in tasks]

    def deltas(self, prompts: Sequence[EnginePrompt]) -> AsyncGenerator[_Delta, None]:
        """Yield new output of any prompt's completions, until all are finished."""
        self._num_prompts = len(prompts)
        return self._deltas_of(0, prompts[0]) if len(prompts) == 1 else self._merged(prompts)

    async def _merged(self, prompts: Sequence[EnginePrompt]) -> AsyncGenerator[_Delta, None]:
        queue: asyncio.Queue[_Delta | Exception | None] = asyncio.Queue(maxsize=len(prompts))

        async def follow(index: int) -> None:
            try:
                async for delta in self._deltas_of(index, prompts[index]):
                    await queue.put(delta)
            except Exception as error:
                await queue.put(error)
            else:
                await queue.put(None)

        tasks = [asyncio.create_task(follow(index)) for index in range(len(prompts))]
        try:
            num_open = len(tasks)
            while num_open:
                received = await queue.get()
                if isinstance(received, Exception):
                    raise received
                if received is None:
                    num_open -= 1
                else:
                    yield received
        finally:
            for task in tasks:
                task.cancel()

    async def _final_output(self, index: int, prompt: EnginePrompt) -> RequestOutput:
        accumulator = OutputAccumulator(prompt.text, list(prompt.token_ids))
        async with aclosing(self._deltas_of(index, prompt)) as deltas:
            async for _, delta in deltas:
                output = accumulator.add(delta)
        return output

    async def _deltas_of(self, index: int, prompt: EnginePrompt) -> AsyncGenerator[_Delta, None]:
        record, params = self._record, self._params
        deltas = self._model.engine.stream_deltas(
            prompt,
            params,
            options=self._options,
            request_id=self._request_id(index),
            timeout_s=self._timeout_s,
            hold_s=_STREAM_HOLD_S if self._record.is_stream else _FULL_RESPONSE_HOLD_S,
        )
        generation = GenerationRecord(self._model.name, record.arrived_s, params)
        record.generations.append(generation)
        if record.prompts is not None:
            record.prompts.append(prompt.token_ids if prompt.text is None else prompt.text)
        common = None
        if record.recent_prompts is not None:
            scope = (self._model.parent or "", self._model.name, self._options.tenant, self._options.cache_salt)
            common = record.recent_prompts.add(record.request_id, scope, prompt.token_ids)
        try:
            with self._metrics.observing(generation):
                async with aclosing(deltas):
                    async for delta in deltas:
                        self._ticket.leave_queue()
                        self._metrics.update(generation, delta)
                        yield index, delta
        finally:
            self._ticket.charge(generation.num_output_tokens)
            if common is not None:
                block_size, decode = self._model.info.block_size, self._model.tokenizer.decode
                record.prefixes.append(common.describe(generation.num_cached_tokens, block_size, decode))

    def _request_id(self, index: int) -> str:
        return f"{self._record.request_id}-{index}"


async def aborted_deltas(num_prompts: int, num_completions: int) -> AsyncGenerator[_Delta, None]:
    """Yield the output of prompts that were cancelled before an engine got them: empty completions with `abort`."""
    now_s = time.perf_counter()
    for index in range(num_prompts):
        completions = [CompletionDelta(number, "", [], None, 0, "abort") for number in range(num_completions)]
        yield index, OutputDelta("", completions, True, RequestMetrics(now_s, None, now_s), 0)


async def aborted_outputs(num_prompts: int, num_completions: int) -> list[RequestOutput]:
    """The outputs of `aborted_deltas`."""
    deltas = aborted_deltas(num_prompts, num_completions)
    return [OutputAccumulator("", []).add(delta) async for _, delta in deltas]


async def stream_events(
    first: Awaitable[_Delta],
    others: AsyncIterator[_Delta],
    builder: ResponseBuilder,
    *,
    prompts: Sequence[EnginePrompt],
    num_completions: int,
) -> AsyncGenerator[EventBatch, None]:
    """Yield the events of a streamed response: the initial ones, those of each delta, and the final ones in a batch
    with those of the last delta. Each prompt has `num_completions` completions.
    """
    yield EventBatch(list(builder.initial_events()))
    states = [PromptState.initial(prompt) for prompt in prompts]
    num_open = len(prompts)
    indexed_delta: _Delta | None = await first
    while indexed_delta is not None:
        prompt_index, delta = indexed_delta
        state = states[prompt_index]
        state.add(delta)
        events: list[Event] = []
        for completion in delta.completions:
            # A delta without any of these has tokens only: its text ends within a character or a possible stop string.
            if completion.text or completion.finish_reason is not None or completion.logprobs:
                events += builder.delta_events(prompt_index * num_completions + completion.index, completion, state)
        num_open -= delta.finished
        if not num_open:
            events += builder.final_events(states)
        yield EventBatch(events, is_last=not num_open)
        indexed_delta = await anext(others, None)
