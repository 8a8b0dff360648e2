"""`/v1/embeddings`: embeddings of texts, which are the model's pooled and normalised hidden states."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.engine.requests.prompt_reader import EnginePrompt, TextToEmbed
from aethermind.errors import ContextLengthError, RequestTimeoutError
from aethermind.server.cancellation import unless_disconnected
from aethermind.server.observation.observer import EmbeddingRecord
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.serving import CLIENT_CLOSED_REQUEST, TextsOrTokens, engine_prompts
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_EMBEDDINGS, UnsupportedField

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.server.admission import AdmissionTicket
    from aethermind.server.served_model import ServedModel

    Vectors = Sequence[npt.NDArray[np.float32]]

__all__ = ["EmbeddingRequest", "embed"]

MAX_INPUTS = 2048
"""The limit of OpenAI's API."""


class EmbeddingRequest(StrictModel):
    """The body of a request.

    `pooling` is an extension of the API (see `LLM.embed`). Embeddings cannot be shortened: `dimensions` accepts only
    the number that the model's embeddings have.
    """

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_EMBEDDINGS

    model: str
    input: TextsOrTokens
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    pooling: Literal["last", "mean", "cls"] | None = None


_CHARS_PER_TOKEN = 16
"""Upper bound of the mean characters per token of a text that is truncated."""

EmbeddingBody = Callable[["ServedModel", "Vectors", int], dict[str, Any]]
"""Returns the body of a response for the model, the embeddings of the texts, and their number of tokens."""


async def embed(
    request: Request, body: EmbeddingRequest, response_body: EmbeddingBody | None = None, *, truncates: bool = False
) -> Response:
    """Answer an embedding request. ApiError 499 if it is cancelled by its id: no part of its answer is of use.

    The default of `response_body` is OpenAI's. With `truncates` only the beginning of a text that exceeds the context
    is embedded; otherwise such a text is a ContextLengthError.
    """
    state, record = request.app.state, request.state.record
    state.models.status(body.model)  # an unknown model is the first error
    record.user = body.user
    prompts = engine_prompts(body.input, "input", MAX_INPUTS)
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def cancel() -> bool:
        if not cancelled.done():
            cancelled.set_result(None)
        return True

    tenant = request.state.tenant
    with state.in_flight_requests.registered(
        record.request_id, tenant.id, cancel, request.state.abort, record.client_id
    ):
        answer = await unless_disconnected(
            request, _answer(request, body, prompts, response_body or _openai_body(body), truncates), cancelled
        )
    if answer is None and cancelled.done():
        raise ApiError(CLIENT_CLOSED_REQUEST, "The request was cancelled.", code="request_cancelled")
    return Response(status_code=CLIENT_CLOSED_REQUEST) if answer is None else JSONResponse(answer)


async def _answer(
    request: Request,
    body: EmbeddingRequest,
    prompts: Sequence[Prompt],
    response_body: EmbeddingBody,
    truncates: bool,
) -> dict[str, Any]:
    """The body of the response. A cancellation releases what the request holds: its model, queue and engine."""
    state, record = request.app.state, request.state.record
    timeout_s = state.limits.request_timeout_s
    async with AsyncExitStack() as resources:
        ticket = resources.enter_context(state.admission.admit(1, request.state.tenant))
        model = await resources.enter_async_context(state.models.lease(body.model))
        texts = [TextToEmbed.of(prompt) for prompt in prompts]
        if truncates:
            tokenized = await _read_beginnings(model, texts)
        else:
            tokenized = await model.read_all(texts, "input")
        num_tokens = sum(len(prompt.token_ids) for prompt in tokenized)
        record.embedding = EmbeddingRecord(model.name, num_tokens)
        _check_size(num_tokens, len(tokenized), state.limits.max_queued_tokens)
        ticket.enqueue(num_tokens)
        try:
            async with asyncio.timeout(timeout_s):
                vectors = await _embeddings(model, tokenized, body, ticket)
        except TimeoutError:
            raise RequestTimeoutError(f"The embeddings were not finished after {timeout_s:g} seconds.") from None
    state.metrics.count_embedding(record.embedding)
    return response_body(model, vectors, num_tokens)


def _openai_body(body: EmbeddingRequest) -> EmbeddingBody:
    encode = _base64 if body.encoding_format == "base64" else _floats

    def response_body(model: ServedModel, vectors: Vectors, num_tokens: int) -> dict[str, Any]:
        data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": model.name, "usage": usage}

    return response_body


async def _read_beginnings(model: ServedModel, texts: Sequence[Prompt]) -> list[EnginePrompt]:
    """Tokenise texts; of a text that exceeds the context as many of its first tokens as the context holds."""
    limit = model.info.max_model_len
    read = []
    for text in texts:
        try:
            prompt = await model.read(text)
        except ContextLengthError:
            assert isinstance(text, str)
            beginning = str(text[: limit * _CHARS_PER_TOKEN])
            prompt = EnginePrompt(text, await asyncio.to_thread(_encode, model, beginning))
        read.append(_truncated(prompt, model, limit))
        await asyncio.sleep(0)
    return read


def _encode(model: ServedModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=True)


def _truncated(prompt: EnginePrompt, model: ServedModel, limit: int) -> EnginePrompt:
    token_ids = prompt.token_ids
    if len(token_ids) <= limit:
        return prompt
    is_ended = token_ids[-1] in model.tokenizer.special_token_ids  # such as [SEP], which encoders need at the end
    return EnginePrompt(None, [*token_ids[: limit - 1], token_ids[-1] if is_ended else token_ids[limit - 1]])


def _check_size(num_tokens: int, num_texts: int, max_tokens: int) -> None:
    """ApiError 400 for several texts that exceed the token queue together. The context length bounds a single text."""
    if num_texts > 1 and num_tokens > max_tokens:
        raise ApiError(
            400,
            f"input has {num_tokens} tokens in {num_texts} texts, and a request may have {max_tokens}; split it.",
            param="input",
            code="token_queue_full",
        )


async def _embeddings(
    model: ServedModel, prompts: Sequence[EnginePrompt], body: EmbeddingRequest, ticket: AdmissionTicket
) -> list[npt.NDArray[np.float32]]:
    """One embedding after the other, so that the engine can schedule steps of other requests between them."""
    vectors = []
    for prompt in prompts:
        vector = await model.engine.embed(prompt, body.pooling, is_normalized=True, adapter=model.adapter)
        ticket.leave_queue()
        if body.dimensions is not None and body.dimensions != len(vector):
            message = f"dimensions can only be {len(vector)}, which this model's embeddings have; leave it out."
            raise ApiError(400, message, param="dimensions", code="invalid_value")
        vectors.append(vector)
    return vectors


def _floats(vector: npt.NDArray[np.float32]) -> Any:
    return vector.tolist()


def _base64(vector: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
