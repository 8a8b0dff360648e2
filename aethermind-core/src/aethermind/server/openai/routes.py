"""The routes of OpenAI's API: each reads its body, opens an answer and tells it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from aethermind.server.openai.chat import ChatAnswer, ChatRequest
from aethermind.server.openai.completions import CompletionAnswer, CompletionRequest
from aethermind.server.openai.direct_route import DirectRoute
from aethermind.server.openai.embeddings import EmbeddingRequest, embed
from aethermind.server.openai.json_body import body_of, documented
from aethermind.server.openai.response_answer import ResponseAnswer
from aethermind.server.openai.responses import ResponseRequest, ResponseWish
from aethermind.server.openai.serving import answer_request

if TYPE_CHECKING:
    from aethermind.server.served_model import ServedModel

__all__ = ["model_router", "router"]

router = APIRouter(route_class=DirectRoute)
"""What engines answer."""

model_router = APIRouter()
"""Which models there are."""


@router.post("/v1/completions", openapi_extra=documented(CompletionRequest), response_model=None)
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))]
) -> Response:
    """Continue a text, or several."""
    model = request.app.state.models.get(body.model)
    answer = CompletionAnswer(body, model, request.state.request_id)
    return await answer_request(request, body, model, body.prompts(), answer)


@router.post("/v1/chat/completions", openapi_extra=documented(ChatRequest), response_model=None)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]) -> Response:
    """Answer a conversation."""
    model = request.app.state.models.get(body.model)
    prompt = await asyncio.to_thread(body.prompt, model, request.app.state.ignored_fields)
    answer = ChatAnswer(body, model, request.state.request_id, prompt)
    return await answer_request(request, body, model, [prompt], answer)


@router.post("/v1/responses", openapi_extra=documented(ResponseRequest), response_model=None)
async def respond(request: Request, body: Annotated[ResponseRequest, Depends(body_of(ResponseRequest))]) -> Response:
    """Answer items."""
    model = request.app.state.models.get(body.model)
    wish = ResponseWish(body)
    prompt = await asyncio.to_thread(wish.prompt, model, request.app.state.ignored_fields)
    answer = ResponseAnswer(body, wish, wish.sampling(model), model, request.state.request_id, prompt)
    return await answer_request(request, wish, model, [prompt], answer)


@router.post("/v1/embeddings", openapi_extra=documented(EmbeddingRequest), response_model=None)
async def embeddings(
    request: Request, body: Annotated[EmbeddingRequest, Depends(body_of(EmbeddingRequest))]
) -> Response:
    """A vector for each text."""
    return await embed(request, body, request.app.state.models.get(body.model))


@model_router.get("/v1/models/", include_in_schema=False)
@model_router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The models there are, each followed by its adapters."""
    return {"object": "list", "data": [_described(model) for model in request.app.state.models]}


@model_router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    return _described(request.app.state.models.get(name))


def _described(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "aethermind",
        "max_model_len": model.info.max_model_len,
        "parent": model.parent,
    }
