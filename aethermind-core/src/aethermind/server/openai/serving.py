"""Serving of generation requests: admission, tokenisation, length checks, and the full or streamed response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.errors import ContextLengthError
from aethermind.server.admission import OutputTokenBudget
from aethermind.server.cancellation import unless_disconnected
from aethermind.server.generation import Generation, stream_events
from aethermind.server.model_pool import ModelState
from aethermind.server.openai.errors import ApiError
from aethermind.server.sse import KEEP_ALIVE_S, UNNAMED, EventBatch, EventStream, Framing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.admission import AdmissionTicket
    from aethermind.server.generation import ResponseBuilder
    from aethermind.server.model_pool import ModelPool, ModelStatus
    from aethermind.server.served_model import ServedModel

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

PrepareResponse = Callable[["ServedModel"], Awaitable[tuple[list["Prompt"], "ResponseBuilder"]]]
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
    framing: Framing = UNNAMED,
) -> Response:
    """Generate completions by the model or adapter `name` with the parameters of `body`; returns the response.

    `prepare` returns the `num_prompts` prompts for the model, and the builder of the response. All prompts are checked
    before the engine gets the first. Raises ApiError and the errors of the engine. If a model takes long to load, its
    stream begins with comments, in `framing`.
    """
    state, tenant, record = request.app.state, request.state.tenant, request.state.record
    record.is_stream, record.user = body.is_stream, body.user
    pool: ModelPool = state.models
    is_loaded = pool.status(name).state is ModelState.LOADED
    async with AsyncExitStack() as resources:
        field = "prompt" if body.num_completions == 1 else "n"
        ticket = resources.enter_context(state.admission.admit(num_prompts * body.num_completions, tenant, field))
        leases = await resources.enter_async_context(AsyncExitStack())
        leased = leases.enter_async_context(pool.lease(name))
        if body.is_stream and not is_loaded:
            leasing = asyncio.ensure_future(leased)
            resources.push_async_callback(_cancel, leasing)
            if not await _is_connected_at_first_output(request, leasing, _LOADING_COMMENT_INTERVAL_S):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            if not leasing.done():
                stream_resources = resources.pop_all()
                events = _events_after_loading(request, name, leasing, body, prepare, ticket, stream_resources)
                return EventStream(
                    events, stream_resources, framing=framing, send_timeout_s=state.limits.send_timeout_s
                )
            model = leasing.result()
        else:
            leased_model = await unless_disconnected(request, leased)
            if leased_model is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            model = leased_model
        generation, tokenized, builder = await _start_generation(request, body, model, prepare, ticket, resources)
        if not body.is_stream:
            outputs = await unless_disconnected(request, generation.outputs(tokenized))
            if outputs is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(builder.full_response(outputs))
        deltas = await resources.enter_async_context(aclosing(generation.deltas(tokenized)))
        first = asyncio.ensure_future(anext(deltas))
        if not await _is_connected_at_first_output(request, first, KEEP_ALIVE_S):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return EventStream(
            stream_events(first, deltas, builder, prompts=tokenized, num_completions=body.num_completions),
            resources.pop_all(),
            framing=builder.framing,
            send_timeout_s=state.limits.send_timeout_s,
        )


async def _start_generation(
    request: Request,
    body: GenerationParams,
    model: ServedModel,
    prepare: PrepareResponse,
    ticket: AdmissionTicket,
    resources: AsyncExitStack,
) -> tuple[Generation, list[EnginePrompt], ResponseBuilder]:
    """Tokenise and check the prompts, and register the generation until `resources` are closed."""
    state, tenant, record = request.app.state, request.state.tenant, request.state.record
    prompts, builder = await prepare(model)
    params, options = body.sampling(model), body.options(tenant, model)
    tokenized = await model.read_all(prompts, "prompt")
    _check_lengths(model, tokenized, body)
    ticket.enqueue(sum(len(prompt.token_ids) for prompt in tokenized), _output_budget(model, tokenized, params, body))
    generation = Generation(
        model, record, params, options, ticket, timeout_s=state.limits.request_timeout_s, metrics=state.metrics
    )
    resources.enter_context(
        state.in_flight_requests.registered(
            record.request_id, tenant.id, generation.cancel, request.state.abort, record.client_id
        )
    )
    return generation, tokenized, builder


async def _events_after_loading(
    request: Request,
    name: str,
    leasing: asyncio.Future[ServedModel],
    body: GenerationParams,
    prepare: PrepareResponse,
    ticket: AdmissionTicket,
    resources: AsyncExitStack,
) -> AsyncGenerator[EventBatch, None]:
    """Yield comments with the progress of loading, and then the events of the streamed response."""
    pool: ModelPool = request.app.state.models
    while not leasing.done():
        yield EventBatch([_loading_comment(pool.status(name))])
        await asyncio.wait({leasing}, timeout=_LOADING_COMMENT_INTERVAL_S)
    generation, tokenized, builder = await _start_generation(
        request, body, leasing.result(), prepare, ticket, resources
    )
    yield EventBatch([], framing=builder.framing)
    deltas = await resources.enter_async_context(aclosing(generation.deltas(tokenized)))
    first = asyncio.ensure_future(anext(deltas))
    resources.push_async_callback(_cancel, first)
    async for batch in stream_events(first, deltas, builder, prompts=tokenized, num_completions=body.num_completions):
        yield batch


def _loading_comment(status: ModelStatus) -> bytes:
    """A comment of an event stream (WHATWG HTML, 9.2.6), which clients ignore."""
    done = "" if status.progress is None else f" {status.progress:.0%}"
    return f": {'loading' if status.state is ModelState.LOADING else 'waiting for'} the model{done}\n\n".encode()


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


async def _is_connected_at_first_output(request: Request, first: asyncio.Future[Any], timeout_s: float) -> bool:
    """Wait for `first`, the model or the first output of a stream; False if the client disconnects before it is done.

    Waits for `timeout_s` at most. An error of `first` is raised here, while the response can still have an error
    status.
    """
    disconnected: asyncio.Future[None] = request.state.disconnected
    futures: set[asyncio.Future[Any]] = {first, disconnected}
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if first.done():
        first.result()
    elif disconnected.done():
        first.cancel()
        await asyncio.wait({first})
        return False
    return True
