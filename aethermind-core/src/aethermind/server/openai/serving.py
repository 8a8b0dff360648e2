"""Serving of generation requests: admission, tokenisation, length checks, and the whole or streamed response."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.errors import ContextLengthError
from aethermind.server.admission import OutputTokenBudget
from aethermind.server.cancellation import unless_disconnected
from aethermind.server.generation import Generation, stream_events
from aethermind.server.openai.errors import ApiError
from aethermind.server.sse import KEEP_ALIVE_S, EventStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.generation import ResponseBuilder
    from aethermind.server.served_model import ServedModel

__all__ = ["CLIENT_CLOSED_REQUEST", "GenerationParams", "TextsOrTokens", "answer_request", "prompts_of"]

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has disconnected; only the log and the metrics show it."""

TextsOrTokens = str | list[str] | list[int] | list[list[int]]
"""A prompt, several prompts, the token ids of one, or the token ids of several."""


def prompts_of(given: TextsOrTokens, field: str, max_prompts: int) -> list[Prompt]:
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
    def num_answers(self) -> int:
        """The number of answers to each prompt."""

    @property
    def requested_max_tokens(self) -> int | None:
        """The request's limit of output tokens per answer; None for the endpoint's default."""

    @property
    def max_tokens_field(self) -> str:
        """The field that sets the limit."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is streamed."""

    @property
    def user(self) -> str | None:
        """The end user as the client names it, which is only logged."""

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters."""

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """The scheduling and caching options."""


async def answer_request(
    request: Request,
    body: GenerationParams,
    model: ServedModel,
    prompts: Sequence[Prompt],
    builder: ResponseBuilder,
) -> Response:
    """Generate answers to the prompts with the parameters of `body`, and respond in the format of `builder`.

    All prompts are checked before the engine gets the first. Errors are an ApiError, or an error of the engine.
    """
    state, tenant, record = request.app.state, request.state.tenant, request.state.record
    record.is_stream, record.user = body.is_stream, body.user
    params, options = body.sampling(model), body.options(tenant, model)
    async with AsyncExitStack() as resources:
        field = "prompt" if body.num_answers == 1 else "n"
        ticket = resources.enter_context(state.admission.admit(len(prompts) * body.num_answers, tenant, field))
        tokenized = await model.read_all(prompts, "prompt")
        _check_lengths(model, tokenized, body)
        ticket.enqueue(
            sum(len(prompt.token_ids) for prompt in tokenized), _output_budget(model, tokenized, params, body)
        )
        generation = Generation(
            model, record, params, options, ticket, timeout_s=state.limits.request_timeout_s, metrics=state.metrics
        )
        resources.enter_context(
            state.in_flight_requests.registered(
                record.request_id, tenant.id, generation.cancel, request.state.abort, record.client_id
            )
        )
        if not body.is_stream:
            outputs = await unless_disconnected(request, generation.whole(tokenized))
            if outputs is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(builder.full_response(outputs))
        deltas = await resources.enter_async_context(aclosing(generation.deltas(tokenized)))
        first = asyncio.ensure_future(anext(deltas))
        if not await _is_connected_at_first_output(request, first):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        events = stream_events(first, deltas, builder, prompts=tokenized, num_answers=body.num_answers)
        return EventStream(
            events,
            resources.pop_all(),
            framing=builder.framing,
            send_timeout_s=state.limits.send_timeout_s,
        )


def _check_lengths(model: ServedModel, prompts: Sequence[EnginePrompt], body: GenerationParams) -> None:
    """ApiError 400 or ContextLengthError for an empty prompt, or, without a context shift, one that exceeds the context
    with its answer.
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
            f"The context holds {limit} tokens, with at least one for the answer, and the prompt has {longest}. "
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
        left = [max(limit - len(prompt.token_ids), 0) for prompt in prompts]
        num_tokens = sum(num_left if max_tokens is None else min(num_left, max_tokens) for num_left in left)
    field = None if body.requested_max_tokens is None else body.max_tokens_field
    return OutputTokenBudget(num_tokens * body.num_answers, field)


async def _is_connected_at_first_output(request: Request, first: asyncio.Future[tuple[int, OutputDelta]]) -> bool:
    """Wait for the first output of a stream; False if the client disconnects first. Returns after KEEP_ALIVE_S at most.

    Errors of the first step are raised here, while the response can still have an error status.
    """
    disconnected: asyncio.Future[None] = request.state.disconnected
    either: set[asyncio.Future[Any]] = {first, disconnected}
    await asyncio.wait(either, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
    if first.done():
        first.result()
    elif disconnected.done():
        first.cancel()
        await asyncio.wait({first})
        return False
    return True
