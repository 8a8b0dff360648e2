"""`/tokenize` and `/detokenize`: what a text costs before it is sent, in the names that vLLM gave them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from aethermind.server.openai.chat import ChatMessage, ChatRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.foreign_fields import OF_ANSWERS, ForeignField
from aethermind.server.openai.json_body import StrictModel, body_of, documented
from aethermind.server.openai.token_ids import check_token_ids
from aethermind.server.openai.tools import Tool, ToolChoice

__all__ = ["DetokenizeRequest", "TokenizeRequest", "router"]

router = APIRouter()

_OF_CHATS = ("tools", "tool_choice", "reasoning_effort", "chat_template_kwargs")
"""What a template looks at besides messages."""


class TokenizeRequest(StrictModel):
    """A text, or a conversation as the model's template writes it, with the tools that it is told of.
    `add_special_tokens` can only say what is done: they are put around a text, and a template writes its own.
    """

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_ANSWERS

    model: str
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> ChatRequest | None:
        """The request for an answer to the same conversation; None for a text."""
        names = ("messages", *_OF_CHATS)
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.messages is not None:
            return ChatRequest.model_construct(model=self.model, **given)
        if given:
            name = next(iter(given))
            raise ApiError(400, f"{name} goes with messages: no template writes a prompt.", param=name)
        return None


class DetokenizeRequest(StrictModel):
    """Token ids of the model's vocabulary."""

    model: str
    tokens: list[Annotated[int, Field(ge=0)]]


@router.post("/tokenize", openapi_extra=documented(TokenizeRequest))
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(body_of(TokenizeRequest))]
) -> dict[str, Any]:
    """The token ids of a text or a conversation, and how many fit."""
    model = request.app.state.models.get(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "Give either prompt or messages.", param="prompt")
    if body.add_special_tokens not in (None, body.messages is None):
        raise ApiError(
            400, "Special tokens are put around a prompt and not around messages.", param="add_special_tokens"
        )
    chat, ignored = body.chat(), request.app.state.ignored_fields
    text = body.prompt if chat is None else await asyncio.to_thread(chat.prompt, model, ignored)
    tokens = (await model.read(text)).token_ids
    return {"count": len(tokens), "max_model_len": model.info.max_model_len, "tokens": tokens}


@router.post("/detokenize", openapi_extra=documented(DetokenizeRequest))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(body_of(DetokenizeRequest))]
) -> dict[str, Any]:
    """The text that token ids stand for, special tokens written out, so that it is read as the same tokens again."""
    model = request.app.state.models.get(body.model)
    model.check_length(len(body.tokens))
    check_token_ids(body.tokens, model.vocab_size, "tokens")
    text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return {"prompt": text}
