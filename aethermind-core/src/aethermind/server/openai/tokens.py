"""`/tokenize` and `/detokenize`: the tokens of a text or conversation, and the text of tokens, as in vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from aethermind.server.openai.chat import ChatMessage, ChatRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, body_of, openapi_body
from aethermind.server.openai.tools import Tool, ToolChoice
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_GENERATION, UnsupportedField

__all__ = ["DetokenizeRequest", "TokenizeRequest", "router"]

router = APIRouter()

_TEMPLATE_FIELDS = (
    "tools",
    "tool_choice",
    "reasoning_effort",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields besides `messages` that affect the rendering of a conversation."""


class TokenizeRequest(StrictModel):
    """A text, or a conversation with its tools, which the chat template renders.

    `add_special_tokens` accepts only the server's behaviour: true for a text, false for a conversation, whose template
    contains its special tokens.
    """

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_GENERATION

    model: str
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def chat(self) -> ChatRequest | None:
        """The chat request with the same prompt; None for a text."""
        names = ("messages", *_TEMPLATE_FIELDS)
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.messages is not None:
            return ChatRequest.model_construct(model=self.model, **given)
        if given:
            name = next(iter(given))
            raise ApiError(400, f"{name} goes with messages: a prompt is not rendered by a template.", param=name)
        return None


class DetokenizeRequest(StrictModel):
    """Token ids of the model's vocabulary."""

    model: str
    tokens: list[Annotated[int, Field(ge=0)]]


@router.post("/tokenize", openapi_extra=openapi_body(TokenizeRequest))
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(body_of(TokenizeRequest))]
) -> dict[str, Any]:
    """Tokenise a text or a conversation; the response has the context length, too."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "Give either prompt or messages.", param="prompt")
    if body.add_special_tokens not in (None, body.messages is None):
        raise ApiError(
            400, "Special tokens are put around a prompt and not around messages.", param="add_special_tokens"
        )
    chat, ignored = body.chat(), request.app.state.ignored_fields
    async with request.app.state.models.lease(body.model) as model:
        text = body.prompt if chat is None else await asyncio.to_thread(chat.prompt, model, ignored)
        tokens = (await model.read(text)).token_ids
        return {"count": len(tokens), "max_model_len": model.info.max_model_len, "tokens": tokens}


@router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(body_of(DetokenizeRequest))]
) -> dict[str, Any]:
    """Decode token ids to text, with special tokens, so that tokenising the text gives the same ids."""
    async with request.app.state.models.lease(body.model) as model:
        model.check_length(len(body.tokens))
        model.check_token_ids(body.tokens, "tokens")
        text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return {"prompt": text}
