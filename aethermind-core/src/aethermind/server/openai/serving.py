"""Serving of generation requests: admission, tokenisation, length checks, and the full or streamed response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.errors import ContextLengthError
from aethermind.server.admission import OutputTokenBudget
from aethermind.server.cancellation import unless_disconnected
from aethermind.server.generation import Generation, aborted_deltas, aborted_outputs, stream_events
from aethermind.server.model_pool import ModelState
from aethermind.server.openai.errors import ApiError
from aethermind.server.served_model import ServedModel
from aethermind.server.sse import KEEP_ALIVE_S, UNNAMED, EventBatch, EventStream, Framing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.admission import AdmissionTicket
    from aethermind.server.generation import ResponseBuilder
    from aethermind.server.model_pool import ModelPool, ModelStatus

__all__ = [
    "CLIENT_CLOSED_REQUEST",
    "GenerationParams",
    "PrepareResponse",
    "TextsOrTokens",
    "engine_prompts",
    "generate_response",
]

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has disconnected; only the log and the metrics show it."""

_LOADING_COMMENT_INTERVAL_S = 2.0
"""Seconds for which a stream waits for its model before it sends a comment with the progress of loading."""

PrepareResponse = Callable[[ServedModel], Awaitable[tuple[list["Prompt"], "ResponseBuilder"]]]
"""Returns the prompts of a request for a model, and the builder of the response."""

TextsOrTokens = str | list[str] | list[int] | list[list[int]]
"""A prompt, several prompts, the token ids of one, or the token ids of several."""


def engine_prompts(given: TextsOrTokens, field: str, max_prompts: int) -> list[Prompt]:
    """The prompts of the field `field` in the engine's format. ApiError 400 for none or more than `max_prompts`."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{field} is an empty list; give it a text or token ids.", param=field)
    if isinstance(given[0], int):
        return [{"prompt_token_ids": given}]
    if len(given) > max_prompts:
        raise ApiError(
            400, f"{field} has {len(given)} texts but may have {max_prompts}; split the request.", param=field
        )
    return [item if isinstance(item, str) else {"prompt_token_ids": item} for item in given]


class GenerationParams(Protocol):
    """The parameters of a request for generation, whatever its endpoint."""

    @property
    def num_completions(self) -> int:
        """The number of completions to each prompt."""

    @property
    def requested_max_tokens(self) -> int | None:
        """The request's limit of output tokens per completion; None for the endpoint's default."""

    @property
    def max_tokens_field(self) -> str:
        """The field that sets the limit."""

    @property
    def is_stream(self) -> bool:
        """Whether the completion is streamed."""

    @property
    def user(self) -> str | None:
        """The end user as the client names it, which is only logged."""

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters."""

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """The scheduling and caching options."""


async def generate_response(
    request: Request,
    name: str,
    body: GenerationParams,
    num_prompts: int,
    prepare: PrepareResponse,
    builder_of: Callable[[ServedModel], ResponseBuilder],
    framing: Framing = UNNAMED,
) -> Response:
    """Generate completions by the model or adapter `name` with the parameters of `body`; returns the response.

    `prepare` returns the `num_prompts` prompts for the model, and the builder of the response. All prompts are checked
    before the engine gets the first. Raises ApiError and the errors of the engine. If a model takes long to load, its
    stream begins with comments, in `framing`. `builder_of` returns the builder for a request that is cancelled before
    its model is loaded.
    """
    state, tenant, record = request.app.state, request.state.tenant, request.state.record
    record.is_stream, record.user = body.is_stream, body.user
    pool: ModelPool = state.models
    is_loaded = pool.status(name).state is ModelState.LOADED
    async with AsyncExitStack() as resources:
        counted = "prompt" if body.num_completions == 1 else "n"
        ticket = resources.enter_context(state.admission.admit(num_prompts * body.num_completions, tenant, counted))
        pending = _PendingResponse(request, name, body, num_prompts, prepare, builder_of, ticket)
        resources.enter_context(
            state.in_flight_requests.registered(
                record.request_id, tenant.id, pending.cancel, request.state.abort, record.client_id
            )
        )
        leases = await resources.enter_async_context(AsyncExitStack())
        leased = leases.enter_async_context(pool.lease(name))
        model: ServedModel | None
        if body.is_stream and not is_loaded:
            leasing = asyncio.ensure_future(leased)
            resources.push_async_callback(_cancel, leasing)
            wait_s = _LOADING_COMMENT_INTERVAL_S
            if not await _is_connected_at_first_output(request, leasing, wait_s, pending.cancelled):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            if not leasing.done():
                held = resources.pop_all()
                events = pending.events_after_loading(leasing, held, framing)
                return EventStream(events, held, framing=framing, send_timeout_s=state.limits.send_timeout_s)
            model = leasing.result()
        else:
            model = await unless_disconnected(request, leased, pending.cancelled)
            if model is None and not pending.cancelled.done():
                return Response(status_code=CLIENT_CLOSED_REQUEST)
        begun = None if model is None else await pending.begin(model)
        if not body.is_stream:
            if begun is None:
                return JSONResponse(await pending.cancelled_body())
            generation, tokenized, builder = begun
            outputs = await unless_disconnected(request, generation.outputs(tokenized))
            if outputs is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(builder.full_response(outputs))
        if begun is None:
            events = pending.cancelled_events()
        else:
            generation, tokenized, builder = begun
            framing = builder.framing
            deltas = await resources.enter_async_context(aclosing(generation.deltas(tokenized)))
            first = asyncio.ensure_future(anext(deltas))
            if not await _is_connected_at_first_output(request, first, KEEP_ALIVE_S):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            events = stream_events(first, deltas, builder, prompts=tokenized, num_completions=body.num_completions)
        return EventStream(events, resources.pop_all(), framing=framing, send_timeout_s=state.limits.send_timeout_s)


@dataclass(slots=True)
class _PendingResponse:
    """The response to a request, which can be cancelled while it waits for its model and during generation. Mutable.

    `cancelled` is done when the request was cancelled before its generation began.
    """

    request: Request
    name: str
    body: GenerationParams
    num_prompts: int
    prepare: PrepareResponse
    builder_of: Callable[[ServedModel], ResponseBuilder]
    ticket: AdmissionTicket
    generation: Generation | None = None
    cancelled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def cancel(self) -> bool:
        """Cancel it; False if it has ended."""
        if self.generation is not None:
            return self.generation.cancel()
        if not self.cancelled.done():
            self.cancelled.set_result(None)
        return True

    async def begin(self, model: ServedModel) -> tuple[Generation, list[EnginePrompt], ResponseBuilder] | None:
        """Tokenise and check the prompts; None if the request was cancelled meanwhile."""
        body, record = self.body, self.request.state.record
        state, tenant = self.request.app.state, self.request.state.tenant
        prompts, builder = await self.prepare(model)
        params, options = body.sampling(model), body.options(tenant, model)
        tokenized = await model.read_all(prompts, "prompt")
        _check_lengths(model, tokenized, body)
        if self.cancelled.done():
            return None
        num_tokens = sum(len(prompt.token_ids) for prompt in tokenized)
        self.ticket.enqueue(num_tokens, _output_budget(model, tokenized, params, body))
        self.generation = Generation(
            model, record, params, options, self.ticket, timeout_s=state.limits.request_timeout_s, metrics=state.metrics
        )
        return self.generation, tokenized, builder

    async def events_after_loading(
        self, leasing: asyncio.Future[ServedModel], resources: AsyncExitStack, framing: Framing
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield comments with the progress of loading, and then the events of the streamed response."""
        pool: ModelPool = self.request.app.state.models
        either: set[asyncio.Future[Any]] = {leasing, self.cancelled}
        while not (leasing.done() or self.cancelled.done()):
            yield EventBatch([framing.comment(_loading_progress(pool.status(self.name)))])
            await asyncio.wait(either, timeout=_LOADING_COMMENT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
        begun = await self.begin(leasing.result()) if leasing.done() else None
        if begun is None:
            await _cancel(leasing)
            async for batch in self.cancelled_events():
                yield batch
            return
        generation, tokenized, builder = begun
        yield EventBatch([], framing=builder.framing)
        deltas = await resources.enter_async_context(aclosing(generation.deltas(tokenized)))
        first = asyncio.ensure_future(anext(deltas))
        resources.push_async_callback(_cancel, first)
        events = stream_events(first, deltas, builder, prompts=tokenized, num_completions=self.body.num_completions)
        async for batch in events:
            yield batch

    async def cancelled_events(self) -> AsyncGenerator[EventBatch, None]:
        """Yield the events of a stream that was cancelled before its generation began."""
        builder = self.builder_of(ServedModel.unloaded(self.name))
        yield EventBatch([], framing=builder.framing)
        number = self.body.num_completions
        deltas, prompts = aborted_deltas(self.num_prompts, number), [EnginePrompt("", ())] * self.num_prompts
        async for batch in stream_events(anext(deltas), deltas, builder, prompts=prompts, num_completions=number):
            yield batch

    async def cancelled_body(self) -> dict[str, Any]:
        """The body of a response that was cancelled before its generation began."""
        builder = self.builder_of(ServedModel.unloaded(self.name))
        return builder.full_response(await aborted_outputs(self.num_prompts, self.body.num_completions))


def _loading_progress(status: ModelStatus) -> str:
    """The text of the comments that are sent while a stream waits for its model."""
    done = "" if status.progress is None else f" {status.progress:.0%}"
    return f"{'loading' if status.state is ModelState.LOADING else 'waiting for'} the model{done}"


async def _cancel(future: asyncio.Future[Any]) -> None:
    """Cancel a future, and wait until its task has ended."""
    if not future.done():
        future.cancel()
        await asyncio.wait({future})


def _check_lengths(model: ServedModel, prompts: Sequence[EnginePrompt], body: GenerationParams) -> None:
    """ApiError 400 or ContextLengthError for an empty prompt, or, without a context shift, one that exceeds the context
    with its completion.
    """
    limit, requested = model.info.max_model_len, body.requested_max_tokens
    lengths = [len(prompt.token_ids) for prompt in prompts]
    if not all(lengths):
        raise ApiError(400, "The prompt is empty; give it at least one token.", param="prompt")
    if model.info.has_context_shift:
        return
    longest = max(lengths)
    if requested is None and longest >= limit:
        raise ContextLengthError(
            f"The context holds {limit} tokens, with at least one for the completion, and the prompt has {longest}. "
            "Shorten it."
        )
    if requested is not None and longest + requested > limit:
        raise ApiError(
            400,
            f"The context holds {limit} tokens, the prompt has {longest}, and {min(requested, 2**63)} more were asked "
            f"for. Shorten the prompt or lower {body.max_tokens_field}.",
            code="context_length_exceeded",
        )


def _output_budget(
    model: ServedModel, prompts: Sequence[EnginePrompt], params: SamplingParams, body: GenerationParams
) -> OutputTokenBudget:
    """The upper bound of the output tokens of all prompts."""
    limit, max_tokens = model.info.max_model_len, params.max_tokens
    if model.info.has_context_shift:
        num_tokens = len(prompts) * (limit if max_tokens is None else max_tokens)
    else:
        remaining = [max(limit - len(prompt.token_ids), 0) for prompt in prompts]
        num_tokens = sum(left if max_tokens is None else min(left, max_tokens) for left in remaining)
    field = None if body.requested_max_tokens is None else body.max_tokens_field
    return OutputTokenBudget(num_tokens * body.num_completions, field)


async def _is_connected_at_first_output(
    request: Request, first: asyncio.Future[Any], timeout_s: float, *others: asyncio.Future[Any]
) -> bool:
    """Wait for `first`, the model or the first output of a stream; False if the client disconnects before it is done.

    Waits for `timeout_s` at most, or until one of `others` is done. An error of `first` is raised here, while the
    response can still have an error status.
    """
    disconnected: asyncio.Future[None] = request.state.disconnected
    either: set[asyncio.Future[Any]] = {first, disconnected, *others}
    await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if first.done():
        first.result()
    elif disconnected.done():
        first.cancel()
        await asyncio.wait({first})
        return False
    return True
