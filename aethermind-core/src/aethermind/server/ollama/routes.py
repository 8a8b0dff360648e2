"""The routes of Ollama's API that engines answer: `/api/chat`, `/api/generate` and embeddings."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from aethermind.server.ollama.models import lines_or_object, served_name, set_keep_alive
from aethermind.server.ollama.requests import ChatBody, EmbedBody, GenerateBody, OldEmbedBody, OllamaParams
from aethermind.server.ollama.response import OllamaResponseBuilder, nanoseconds, timestamp
from aethermind.server.openai.embeddings import EmbeddingRequest, embed
from aethermind.server.openai.json_body import body_of, openapi_body
from aethermind.server.openai.routes import DirectRoute
from aethermind.server.openai.serving import generate_response
from aethermind.server.sse import NDJSON

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.server.generation import ResponseBuilder
    from aethermind.server.served_model import ServedModel

__all__ = ["router"]

router = APIRouter(route_class=DirectRoute)


@router.post("/api/chat", openapi_extra=openapi_body(ChatBody), response_model=None)
async def chat(request: Request, body: Annotated[ChatBody, Depends(body_of(ChatBody))]) -> Response:
    """Answer a conversation."""
    return await _answer(request, body)


@router.post("/api/generate", openapi_extra=openapi_body(GenerateBody), response_model=None)
async def generate(request: Request, body: Annotated[GenerateBody, Depends(body_of(GenerateBody))]) -> Response:
    """Answer a prompt, or continue a text."""
    return await _answer(request, body)


@router.post("/api/embed", openapi_extra=openapi_body(EmbedBody), response_model=None)
async def embed_texts(request: Request, body: Annotated[EmbedBody, Depends(body_of(EmbedBody))]) -> Response:
    """Compute an embedding of each text."""
    state, arrived_s = request.app.state, request.state.record.arrived_s
    name = served_name(state.models, body.model)

    def response_body(_: ServedModel, vectors: Sequence[npt.NDArray[np.float32]], num_tokens: int) -> dict[str, Any]:
        return {
            "model": body.model,
            "embeddings": [_shortened(vector, body.dimensions) for vector in vectors],
            "total_duration": nanoseconds(time.perf_counter() - arrived_s),
            "load_duration": nanoseconds(0),
            "prompt_eval_count": num_tokens,
        }

    if not body.input:
        return JSONResponse({"model": body.model, "embeddings": []})
    asked = EmbeddingRequest(model=name, input=body.input)
    return await embed(request, asked, response_body, truncates=body.truncate is not False)


@router.post("/api/embeddings", openapi_extra=openapi_body(OldEmbedBody), response_model=None)
async def embed_prompt(request: Request, body: Annotated[OldEmbedBody, Depends(body_of(OldEmbedBody))]) -> Response:
    """Compute the embedding of a text; the older form of `/api/embed`."""
    name = served_name(request.app.state.models, body.model)
    if not body.prompt:
        return JSONResponse({"embedding": []})

    def response_body(_: ServedModel, vectors: Sequence[npt.NDArray[np.float32]], __: int) -> dict[str, Any]:
        return {"embedding": vectors[0].tolist()}

    return await embed(request, EmbeddingRequest(model=name, input=body.prompt), response_body, truncates=True)


def _shortened(vector: npt.NDArray[np.float32], dimensions: int | None) -> list[float]:
    """The first `dimensions` elements of an embedding, normalised: what models with Matryoshka embeddings are for."""
    if dimensions and 0 < dimensions < len(vector):
        vector = vector[:dimensions]
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    elements: list[float] = vector.tolist()
    return elements


async def _answer(request: Request, body: ChatBody | GenerateBody) -> Response:
    state, record = request.app.state, request.state.record
    name = served_name(state.models, body.model)
    if body.is_empty:
        return await _load_or_unload(request, name, body)
    params = OllamaParams(body, state.ignored_fields)

    def builder(model: ServedModel, prompt: str = "", load_s: float = 0.0) -> ResponseBuilder:
        return OllamaResponseBuilder(params, model, record, prompt, load_s)

    async def prepare(model: ServedModel) -> tuple[list[Prompt], ResponseBuilder]:
        load_s = time.perf_counter() - record.arrived_s
        prompt = await asyncio.to_thread(params.prompt, model, state.ignored_fields)
        return [prompt], builder(model, prompt, load_s)

    return await generate_response(request, name, params, 1, prepare, builder, NDJSON)


async def _load_or_unload(request: Request, name: str, body: ChatBody | GenerateBody) -> Response:
    done_reason = await set_keep_alive(request, name, body.keep_alive)
    empty: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if body.is_chat else {"response": ""}
    common = {"model": body.model, "created_at": timestamp()}
    return lines_or_object(body.is_stream, {**common, **empty, "done": True, "done_reason": done_reason})
