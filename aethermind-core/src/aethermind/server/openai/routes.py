"""The routes of OpenAI's API: each reads its body, opens an answer and tells it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from aethermind.server.answering import Answering, told
from aethermind.server.openai.chat import ChatAnswer, ChatRequest
from aethermind.server.openai.completions import CompletionAnswer, CompletionRequest
from aethermind.server.openai.errors import ApiError, as_api_error
from aethermind.server.openai.json_body import body_of, documented
from aethermind.server.sse import EventStream, until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence

    from aethermind.engine.output import RequestOutput
    from aethermind.engine.prompt_reader import EnginePrompt, Prompt
    from aethermind.server.openai.answers import Answer
    from aethermind.server.served_model import ServedModel

__all__ = ["router"]

router = APIRouter()
_CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has gone; nobody sees it but the log."""


@router.post("/v1/completions", openapi_extra=documented(CompletionRequest), response_model=None)
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))]
) -> Response:
    """Continue a text, or several."""
    model = request.app.state.models.get(body.model)
    return await _answer(request, body, model, body.prompts(), CompletionAnswer(body, model))


@router.post("/v1/chat/completions", openapi_extra=documented(ChatRequest), response_model=None)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]) -> Response:
    """Answer a conversation."""
    model = request.app.state.models.get(body.model)
    prompt = await asyncio.to_thread(body.prompt, model)
    return await _answer(request, body, model, [prompt], ChatAnswer(body, model))


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The models there are."""
    return {"object": "list", "data": [_described(model) for model in request.app.state.models]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    return _described(request.app.state.models.get(name))


async def _answer(
    request: Request,
    body: CompletionRequest | ChatRequest,
    model: ServedModel,
    prompts: Sequence[Prompt],
    answer: Answer,
) -> Response:
    state, record = request.app.state, request.state.record
    record.is_stream, record.user = bool(body.stream), body.user
    answering = Answering(
        model,
        record,
        body.sampling(model),
        body.options,
        timeout_s=state.limits.request_timeout_s,
        metrics=state.metrics,
    )
    async with AsyncExitStack() as resources:
        resources.enter_context(state.admission.enter(len(prompts) * body.num_answers))
        read = [await model.engine.read(prompt) for prompt in prompts]
        _check_room(model, read, body.asked_tokens)
        if not body.stream:
            outputs = await _unless_gone(request, answering.whole(read))
            return (
                Response(status_code=_CLIENT_CLOSED_REQUEST) if outputs is None else JSONResponse(answer.whole(outputs))
            )
        states = await resources.enter_async_context(aclosing(answering.states(read)))
        first = await anext(states)  # what is wrong with the request shows here, while there is a status to say so
        events = told(_continued(first, states), answer, body.num_answers, has_usage=body.has_stream_usage)
        return EventStream(events, resources.pop_all())


def _check_room(model: ServedModel, prompts: Sequence[EnginePrompt], asked_tokens: int | None) -> None:
    """ApiError 400 where a prompt and the tokens asked for exceed the context."""
    limit = model.info.max_model_len
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if asked_tokens is not None and longest + asked_tokens > limit:
        raise ApiError(
            400,
            f"The context holds {limit} tokens, the prompt has {longest}, and {min(asked_tokens, 2**63)} more were "
            "asked for. Shorten the prompt or lower max_tokens.",
            code="context_length_exceeded",
        )


async def _continued(
    first: tuple[int, RequestOutput], others: AsyncIterator[tuple[int, RequestOutput]]
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    yield first
    async for state in others:
        yield state


async def _unless_gone(request: Request, work: Coroutine[Any, Any, list[RequestOutput]]) -> list[RequestOutput] | None:
    """What `work` returns, or None if the client leaves before: then it is cancelled."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return None
        try:
            return working.result()
        except ExceptionGroup as group:
            raise as_api_error(group.exceptions[0]) from group
    finally:
        working.cancel()
        watching.cancel()


def _described(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "aethermind",
        "max_model_len": model.info.max_model_len,
    }
