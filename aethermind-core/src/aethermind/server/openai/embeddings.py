"""`/v1/embeddings`: embeddings of texts, which are the model's pooled and normalised hidden states; `/v1/score` and
`/v1/rerank`: the cosine similarities of texts by their embeddings.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.engine.requests.prompt_reader import EnginePrompt, TextToEmbed
from aethermind.errors import ContextLengthError, RequestTimeoutError
from aethermind.server.cancellation import unless_disconnected
from aethermind.server.generation import response_id
from aethermind.server.observation.observer import EmbeddingRecord
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.request_fields import renamed_fields
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

__all__ = ["EmbeddingRequest", "RerankRequest", "ScoreRequest", "embed", "rerank", "score"]

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


class ScoreRequest(StrictModel):
    """The body of a request for similarities, in vLLM's shape: of one text to each of several, or of pairs."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_EMBEDDINGS

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    truncate_prompt_tokens: Literal[-1] | None = None
    user: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of texts. ApiError 400 for two lists of different lengths, and for too many pairs."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) == 1:
            first = first * len(second)
        if not first or len(first) != len(second):
            raise ApiError(
                400,
                f"text_1 has {len(first)} texts and text_2 {len(second)}; give one and several, or as many of both.",
                param="text_2",
            )
        if len(first) > MAX_INPUTS:
            raise ApiError(
                400, f"text_2 has {len(first)} texts but may have {MAX_INPUTS}; split the request.", param="text_2"
            )
        return list(zip(first, second, strict=True))


class Document(StrictModel):
    """A document of a request to rerank."""

    location = "documents"
    text: str


class RerankRequest(StrictModel):
    """The body of a request to rerank, in the shape of Jina's and Cohere's APIs and of vLLM."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_EMBEDDINGS

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    truncation: bool | None = None
    truncate_prompt_tokens: Literal[-1] | None = None
    user: str | None = None


_CHARS_PER_TOKEN = 16
"""Upper bound of the mean characters per token of a text that is truncated."""

EmbeddingBody = Callable[["ServedModel", "Vectors", int], dict[str, Any]]
"""Returns the body of a response for the model, the embeddings of the texts, and their number of tokens."""


async def score(request: Request, body: ScoreRequest) -> Response:
    """Answer a request for the cosine similarities of pairs of texts."""
    pairs = body.pairs()
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    index_of = {text: index for index, text in enumerate(texts)}

    def response_body(model: ServedModel, vectors: Vectors, num_tokens: int) -> dict[str, Any]:
        values = (float(vectors[index_of[one]] @ vectors[index_of[other]]) for one, other in pairs)
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(values)]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        fields = {"id": response_id(request.state.request_id, "score-"), "object": "list", "created": int(time.time())}
        return {**fields, "model": model.name, "data": data, "usage": usage}

    embedding = EmbeddingRequest(model=body.model, input=texts, user=body.user)
    with renamed_fields({"input": "text_1"}):
        return await embed(
            request,
            embedding,
            response_body,
            truncates=body.truncate_prompt_tokens is not None,
            check=partial(_check_scores, endpoint="Scores"),
        )


async def rerank(request: Request, body: RerankRequest) -> Response:
    """Answer a request to order documents by the cosine similarity of their embeddings to that of the query."""
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    if not texts:
        raise ApiError(400, "documents is an empty list; give it a text.", param="documents")
    if body.top_n is not None and body.top_n < 0:
        raise ApiError(400, "top_n is negative; leave it out for all documents.", param="top_n", code="invalid_value")

    def response_body(model: ServedModel, vectors: Vectors, num_tokens: int) -> dict[str, Any]:
        query, *others = vectors
        scores = [float(query @ vector) for vector in others]
        order = sorted(range(len(texts)), key=lambda index: -scores[index])
        results = []
        for index in order[: body.top_n or None]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            results.append(result | ({} if body.return_documents is False else {"document": {"text": texts[index]}}))
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        fields = {"id": response_id(request.state.request_id, "rerank-"), "model": model.name}
        return {**fields, "usage": usage, "results": results}

    embedding = EmbeddingRequest(model=body.model, input=[body.query, *texts], user=body.user)
    with renamed_fields({"input": "documents"}):
        return await embed(
            request,
            embedding,
            response_body,
            truncates=body.truncation is not False and (body.truncation or body.truncate_prompt_tokens is not None),
            check=partial(_check_scores, endpoint="Reranking"),
        )


def _check_scores(model: ServedModel, *, endpoint: str) -> None:
    """ApiError 400 for a model whose embeddings are not made to be compared."""
    architecture = model.info.architecture
    if architecture.endswith("ForSequenceClassification"):
        reason = f"{model.name} is a cross-encoder ({architecture}), whose classification head is not computed"
    elif not model.info.is_embedding_model:
        reason = f"{model.name} generates text, and its files do not say that it embeds texts"
    else:
        return
    raise ApiError(
        400, f"{endpoint} needs an embedding model: {reason}. Serve a sentence encoder.", code="not_an_embedding_model"
    )


async def embed(
    request: Request,
    body: EmbeddingRequest,
    response_body: EmbeddingBody | None = None,
    *,
    truncates: bool = False,
    check: Callable[[ServedModel], None] | None = None,
) -> Response:
    """Answer an embedding request. ApiError 499 if it is cancelled by its id: no part of its answer is of use.

    The default of `response_body` is OpenAI's. With `truncates` only the beginning of a text that exceeds the context
    is embedded; otherwise such a text is a ContextLengthError. `check` may refuse the model by an ApiError.
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
        work = _answer(request, body, prompts, response_body or _openai_body(body), truncates, check)
        answer = await unless_disconnected(request, work, cancelled)
    if answer is None and cancelled.done():
        raise ApiError(CLIENT_CLOSED_REQUEST, "The request was cancelled.", code="request_cancelled")
    return Response(status_code=CLIENT_CLOSED_REQUEST) if answer is None else JSONResponse(answer)


async def _answer(
    request: Request,
    body: EmbeddingRequest,
    prompts: Sequence[Prompt],
    response_body: EmbeddingBody,
    truncates: bool,
    check: Callable[[ServedModel], None] | None,
) -> dict[str, Any]:
    """The body of the response. A cancellation releases what the request holds: its model, queue and engine."""
    state, record = request.app.state, request.state.record
    timeout_s = state.limits.request_timeout_s
    async with AsyncExitStack() as resources:
        ticket = resources.enter_context(state.admission.admit(1, request.state.tenant))
        model = await resources.enter_async_context(state.models.lease(body.model))
        if check is not None:
            check(model)
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
