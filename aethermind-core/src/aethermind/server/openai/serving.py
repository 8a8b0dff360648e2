"""From a request that was read to its response: let in, answered whole or as a stream, ended if nobody waits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.errors import ContextLengthError
from aethermind.server.answering import Answering, stream_events
from aethermind.server.ended_by import EndedBy
from aethermind.server.limits import AnswerRoom
from aethermind.server.openai.errors import ApiError, as_api_error
from aethermind.server.openai.token_ids import check_token_ids
from aethermind.server.sse import KEEP_ALIVE_S, EventStream

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.openai.answers import Answer
    from aethermind.server.served_model import ServedModel
    from aethermind.server.tenants import Tenant

__all__ = ["GONE", "answer_request", "check_prompt_ids", "unless_gone"]

GONE = 499
"""nginx's status for a client that has left; nobody sees it but the log."""

_Result = TypeVar("_Result")


class Wish(Protocol):
    """What the body of a request says about its answer, whatever the endpoint."""

    @property
    def num_answers(self) -> int:
        """Answers to each prompt."""

    @property
    def asked_tokens(self) -> int | None:
        """The most tokens the client wants; None leaves it to the endpoint."""

    @property
    def length_field(self) -> str:
        """The field that says so, or would."""

    @property
    def is_stream(self) -> bool:
        """Whether parts are wanted as they come."""

    @property
    def user(self) -> str | None:
        """Who the client says asks; logged, never believed."""

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What it asks of sampling."""

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """What it asks of the scheduler."""


async def answer_request(
    request: Request,
    body: Wish,
    model: ServedModel,
    prompts: Sequence[Prompt],
    answer: Answer,
) -> Response:
    """Answer some prompts as `body` wishes, in the form of `answer`."""
    state, tenant, record = request.app.state, request.state.tenant, request.state.record
    record.is_stream, record.user = body.is_stream, body.user
    params, options = body.sampling(model), body.options(tenant, model)
    async with AsyncExitStack() as resources:
        field = "prompt" if body.num_answers == 1 else "n"
        stay = resources.enter_context(state.admission.enter(len(prompts) * body.num_answers, tenant, field))
        read = await model.read_all(prompts)
        check_prompt_ids(read, model, "prompt")
        _check_room(model, read, body)
        stay.queue(sum(len(prompt.token_ids) for prompt in read), _answer_room(model, read, params, body))
        answering = Answering(
            model, record, params, options, stay, timeout_s=state.limits.request_timeout_s, metrics=state.metrics
        )
        resources.enter_context(
            state.open_requests.holding(
                record.request_id, tenant.id, answering.cancel, request.state.cut, record.client_id
            )
        )
        if not body.is_stream:
            outputs = await unless_gone(request, answering.whole(read))
            return Response(status_code=GONE) if outputs is None else JSONResponse(answer.whole(outputs))
        states = await resources.enter_async_context(aclosing(answering.states(read)))
        first = asyncio.ensure_future(anext(states))
        if not await _is_awaited(request, first):
            return Response(status_code=GONE)
        events = stream_events(first, states, answer, num_prompts=len(prompts), num_answers=body.num_answers)
        return EventStream(
            events,
            resources.pop_all(),
            framing=answer.framing,
            slow_reader_timeout_s=state.limits.slow_reader_timeout_s,
        )


def check_prompt_ids(prompts: Sequence[EnginePrompt], model: ServedModel, field: str) -> None:
    """ApiError 400 that names `field` for ids that the model does not have, before any of the prompts is begun."""
    for prompt in prompts:
        if prompt.text is None:
            check_token_ids(prompt.token_ids, model.vocab_size, field)


def _check_room(model: ServedModel, prompts: Sequence[EnginePrompt], body: Wish) -> None:
    """ApiError 400 where a prompt has no tokens, or too many with those asked for: before any of them is begun."""
    limit, asked = model.info.max_model_len, body.asked_tokens
    lengths = [len(prompt.token_ids) for prompt in prompts]
    if not all(lengths):
        raise ApiError(400, "The prompt is empty; give it at least one token.", param="prompt")
    longest = max(lengths)
    if asked is None and longest >= limit:
        raise ContextLengthError(
            f"The context holds {limit} tokens, with at least one for the answer, and the prompt has {longest}. "
            "Shorten it."
        )
    if asked is not None and longest + asked > limit:
        raise ApiError(
            400,
            f"The context holds {limit} tokens, the prompt has {longest}, and {min(asked, 2**63)} more were asked for. "
            f"Shorten the prompt or lower {body.length_field}.",
            code="context_length_exceeded",
        )


def _answer_room(model: ServedModel, prompts: Sequence[EnginePrompt], params: SamplingParams, body: Wish) -> AnswerRoom:
    """The most that may be written for these prompts."""
    rooms = [max(model.info.max_model_len - len(prompt.token_ids), 0) for prompt in prompts]
    most = sum(room if params.max_tokens is None else min(room, params.max_tokens) for room in rooms)
    return AnswerRoom(most * body.num_answers, None if body.asked_tokens is None else body.length_field)


async def _is_awaited(request: Request, first: asyncio.Future[tuple[int, RequestOutput]]) -> bool:
    """Whether the client still waits once a stream has begun, or has been silent for long.

    What is wrong with a request shows when it begins, and is raised here, while there is a status to say so.
    """
    gone: asyncio.Future[None] = request.state.gone
    either: set[asyncio.Future[Any]] = {first, gone}
    await asyncio.wait(either, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
    if first.done():
        first.result()
    elif gone.done():
        first.cancel()
        await asyncio.wait({first})
        return False
    return True


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """What `work` returns, or None if the client leaves before: then it is cancelled."""
    try:
        with EndedBy(request.state.gone):
            return await work
    except ExceptionGroup as group:
        raise as_api_error(group.exceptions[0]) from group
    return None
