"""The routes of OpenAI's API, and their direct dispatch past FastAPI's generic request handling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from aethermind.server.generation import response_id
from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.chat_response import ChatResponseBuilder
from aethermind.server.openai.completions import CompletionRequest, CompletionResponseBuilder
from aethermind.server.openai.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest, embed, rerank, score
from aethermind.server.openai.json_body import body_of, openapi_body
from aethermind.server.openai.response_builder import ResponseObjectBuilder
from aethermind.server.openai.responses import ResponseGenerationParams, ResponseRequest
from aethermind.server.openai.serving import generate_response
from aethermind.server.openai.stored_responses import respond_in_background, stored_response
from aethermind.server.sse import NAMED

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.server.generation import ResponseBuilder
    from aethermind.server.served_model import ServedModel

__all__ = ["DirectDispatch", "DirectRoute", "router"]


class DirectRoute(APIRoute):
    """A route that calls `function(request, body)`, where `body` is the result of the function's only dependency.

    This skips FastAPI's resolution of parameters and its serialisation of responses. The route's entry in
    `/openapi.json` does not change.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        function, (body,) = self.endpoint, self.dependant.dependencies
        read = body.call
        assert read is not None, "a dependency has a function"

        async def handle(request: Request) -> Response:
            response: Response = await function(request, await read(request))
            return response

        return handle


class DirectDispatch:
    """The innermost ASGI middleware: dispatches a request to one of `routes` by its method and path.

    All other requests pass on to FastAPI's router. Exceptions propagate to the outer middleware, which answers them.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[object]) -> None:
        self._app = app
        direct = [route for route in routes if isinstance(route, DirectRoute)]
        self._handlers = {
            (method, route.path): route.get_route_handler() for route in direct for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handlers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)


router = APIRouter(route_class=DirectRoute)
"""The routes that engines answer."""


@router.post("/v1/completions", openapi_extra=openapi_body(CompletionRequest), response_model=None)
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))]
) -> Response:
    """Continue one or several texts."""
    prompts = body.prompts()

    def builder(model: ServedModel) -> ResponseBuilder:
        return CompletionResponseBuilder(body, model, request.state.request_id)

    async def prepare(model: ServedModel) -> tuple[list[Prompt], ResponseBuilder]:
        return body.fill_in(prompts, model), builder(model)

    return await generate_response(request, body.model, body, len(prompts), prepare, builder)


@router.post("/v1/chat/completions", openapi_extra=openapi_body(ChatRequest), response_model=None)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]) -> Response:
    """Answer a conversation."""

    def builder(model: ServedModel, prompt: str = "") -> ResponseBuilder:
        return ChatResponseBuilder(body, model, request.state.request_id, prompt)

    async def prepare(model: ServedModel) -> tuple[list[Prompt], ResponseBuilder]:
        prompt = await asyncio.to_thread(body.prompt, model, request.app.state.ignored_fields)
        return [prompt], builder(model, prompt)

    return await generate_response(request, body.model, body, 1, prepare, builder)


@router.post("/v1/responses", openapi_extra=openapi_body(ResponseRequest), response_model=None)
async def respond(request: Request, body: Annotated[ResponseRequest, Depends(body_of(ResponseRequest))]) -> Response:
    """Answer a list of input items."""
    request_id = request.state.request_id
    stored = stored_response(request, body, response_id(request_id, "resp_"))
    params = ResponseGenerationParams(body)

    def store(response: dict[str, Any]) -> None:
        assert stored is not None
        stored.finish(response)
        request.app.state.response_store.add(stored)

    on_final = None if stored is None or body.background else store

    def builder(model: ServedModel, prompt: str = "") -> ResponseObjectBuilder:
        return ResponseObjectBuilder(body, params, params.sampling(model), model, request_id, prompt, on_final)

    async def prepare(model: ServedModel) -> tuple[list[Prompt], ResponseBuilder]:
        prompt = await asyncio.to_thread(params.prompt, model, request.app.state.ignored_fields)
        return [prompt], builder(model, prompt)

    if body.background and stored is not None:
        return await respond_in_background(request, body, params, stored, prepare, builder)
    return await generate_response(request, body.model, params, 1, prepare, builder, NAMED)


@router.post("/v1/embeddings", openapi_extra=openapi_body(EmbeddingRequest), response_model=None)
async def embeddings(
    request: Request, body: Annotated[EmbeddingRequest, Depends(body_of(EmbeddingRequest))]
) -> Response:
    """Compute an embedding of each text."""
    return await embed(request, body)


@router.post("/v1/score", openapi_extra=openapi_body(ScoreRequest), response_model=None)
@router.post("/score", include_in_schema=False, response_model=None)
async def scores(request: Request, body: Annotated[ScoreRequest, Depends(body_of(ScoreRequest))]) -> Response:
    """Compute the cosine similarity of each pair of texts."""
    return await score(request, body)


@router.post("/v1/rerank", openapi_extra=openapi_body(RerankRequest), response_model=None)
@router.post("/v2/rerank", include_in_schema=False, response_model=None)
@router.post("/rerank", include_in_schema=False, response_model=None)
async def reranked(request: Request, body: Annotated[RerankRequest, Depends(body_of(RerankRequest))]) -> Response:
    """Order documents by their similarity to a query."""
    return await rerank(request, body)
