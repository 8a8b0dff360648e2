"""`/v1/embeddings`: texts as vectors, the model's hidden states pooled and made 1 long."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from aethermind.engine.requests.prompt_reader import TextToEmbed
from aethermind.errors import RequestTimeoutError
from aethermind.server.observation.records import EmbeddingRecord
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.foreign_fields import OF_EMBEDDINGS, ForeignField
from aethermind.server.openai.inputs import TextsOrTokens, prompts_of
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.serving import GONE, check_prompt_ids, unless_gone

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.requests.prompt_reader import EnginePrompt
    from aethermind.server.limits import Stay
    from aethermind.server.served_model import ServedModel

__all__ = ["EmbeddingRequest", "embed"]

MAX_INPUTS = 2048
"""OpenAI's."""


class EmbeddingRequest(StrictModel):
    """The body of a request. `pooling` is ours: see `LLM.embed`. Vectors cannot be made shorter: `dimensions` may be
    what they have.
    """

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_EMBEDDINGS

    model: str
    input: TextsOrTokens
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    pooling: Literal["last", "mean", "cls"] | None = None


async def embed(request: Request, body: EmbeddingRequest, model: ServedModel) -> Response:
    """Answer a request for vectors."""
    state = request.app.state
    record = request.state.record
    record.user = body.user
    prompts = prompts_of(body.input, "input", MAX_INPUTS)
    timeout_s = state.limits.request_timeout_s
    with state.admission.enter(1, request.state.tenant) as stay:
        read = await model.read_all([TextToEmbed.of(prompt) for prompt in prompts])
        check_prompt_ids(read, model, "input")
        num_tokens = sum(len(prompt.token_ids) for prompt in read)
        record.embedding = EmbeddingRecord(model.name, num_tokens)
        _check_size(num_tokens, len(read), state.limits.max_queued_tokens)
        stay.queue(num_tokens)
        try:
            async with asyncio.timeout(timeout_s):
                vectors = await unless_gone(request, _vectors(model, read, body, stay))
        except TimeoutError:
            raise RequestTimeoutError(f"The vectors were not finished after {timeout_s:g} seconds.") from None
    if vectors is None:
        return Response(status_code=GONE)
    state.metrics.embed(record.embedding)
    encode = _base64 if body.encoding_format == "base64" else _floats
    data = [{"object": "embedding", "index": i, "embedding": encode(one)} for i, one in enumerate(vectors)]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})


def _check_size(num_tokens: int, num_texts: int, most: int) -> None:
    """ApiError 400 for texts that are more together than may wait; a single one has the bound of the context."""
    if num_texts > 1 and num_tokens > most:
        raise ApiError(
            400,
            f"input has {num_tokens} tokens in {num_texts} texts, and a request may have {most}; split it.",
            param="input",
            code="queue_full_of_tokens",
        )


async def _vectors(
    model: ServedModel, prompts: Sequence[EnginePrompt], body: EmbeddingRequest, stay: Stay
) -> list[npt.NDArray[np.float32]]:
    # One after the other, so that steps of other requests come between.
    vectors = []
    for prompt in prompts:
        vector = await model.engine.embed(prompt, body.pooling, is_normalized=True, adapter=model.adapter)
        stay.begin()
        if body.dimensions is not None and body.dimensions != len(vector):
            message = f"dimensions can only be {len(vector)}, which is what this model's vectors have; leave it out."
            raise ApiError(400, message, param="dimensions", code="invalid_value")
        vectors.append(vector)
    return vectors


def _floats(vector: npt.NDArray[np.float32]) -> Any:
    return vector.tolist()


def _base64(vector: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
