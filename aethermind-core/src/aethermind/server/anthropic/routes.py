"""The routes of Anthropic's API, and its responses: content blocks, in one message or as the stream of its events."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from aethermind.engine.requests.output_delta import CompletionDelta
from aethermind.server.anthropic import error_body
from aethermind.server.anthropic.request import CountTokensRequest, MessagesParams, MessagesRequest
from aethermind.server.generation import PromptState, ResponseBuilder, response_id
from aethermind.server.openai.chat_response import ChatOutputParser
from aethermind.server.openai.json_body import body_of, openapi_body
from aethermind.server.openai.routes import DirectRoute
from aethermind.server.openai.serving import generate_response
from aethermind.server.openai.tools import call_id
from aethermind.server.sse import NAMED, TextEvents
from aethermind.text.answer_parts import Reasoning, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.server.served_model import ServedModel
    from aethermind.server.sse import Event, Framing
    from aethermind.text.answer_parts import AnswerPart

__all__ = ["MessageBuilder", "count_router", "router"]

router = APIRouter(route_class=DirectRoute)
"""The route that engines answer."""

count_router = APIRouter()
"""The route that needs a tokenizer only."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Maps finish reasons of the chat API; a cancelled request has no stop reason."""


def _framing(request_id: str) -> Framing:
    """The framing of a request's events, with errors in Anthropic's format."""
    return replace(NAMED, failure=lambda error: error_body(error.status, error.message, error.code, request_id))


class MessageBuilder(ResponseBuilder):
    """Builds the message that answers one request, and its events. Mutable; used once.

    `message_start` has the usage of the prompt, so it is sent with the first output.
    """

    def __init__(self, params: MessagesParams, model: ServedModel, request_id: str, prompt: str) -> None:
        self.framing = _framing(request_id)
        self._parser = ChatOutputParser(params.chat, model.answer_format, prompt)
        self._max_tokens = params.max_tokens
        self._message = {
            "id": response_id(request_id, "msg_"),
            "type": "message",
            "role": "assistant",
            "model": model.name,
        }
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._has_started = False
        self._blocks: list[dict[str, Any]] = []
        self._open_type: str | None = None
        """The type of the last block, if it can be continued."""
        self._texts = TextEvents(self.framing, lambda index, text: _delta(index, "text_delta", text=text))

    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        completion = outputs[0].outputs[0]
        delta = CompletionDelta.of_whole(0, completion)
        prompt = PromptState.final(outputs[0])
        for _ in self.delta_events(0, delta, prompt):
            pass  # creating the events builds the blocks
        return {**self._message, "content": self._blocks, **self._stop, "usage": _usage(prompt)}

    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        if not self._has_started:
            self._has_started = True
            usage = {**_usage(prompt), "output_tokens": 0}
            yield {"type": "message_start", "message": {**self._message, "content": [], **self._stop, "usage": usage}}
        is_last = delta.finish_reason is not None
        for part in self._parser.read(delta.text, is_last=is_last):
            yield from self._add(part)
        if is_last:
            yield from self._close()
            self._stop = self._stop_fields(delta, prompt)

    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        yield {"type": "message_delta", "delta": self._stop, "usage": _usage(prompts[0])}
        yield {"type": "message_stop"}

    def _add(self, part: AnswerPart) -> Iterator[Event]:
        """Add a part of the answer: to the last block, or as a new one."""
        if isinstance(part, ToolCall):
            yield from self._close()
            block: dict[str, Any] = {"type": "tool_use", "id": call_id(), "name": part.name, "input": {}}
            yield from self._begin(block)
            block["input"] = _json_object(part.arguments)
            text = json.dumps(block["input"], ensure_ascii=False)
            yield _delta(len(self._blocks) - 1, "input_json_delta", partial_json=text)
            yield from self._close()
        elif isinstance(part, Reasoning):
            if self._open_type != "thinking":
                yield from self._close()
                yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            self._blocks[-1]["thinking"] += part.text
            yield _delta(len(self._blocks) - 1, "thinking_delta", thinking=part.text)
        else:
            if self._open_type != "text":
                yield from self._close()
                yield from self._begin({"type": "text", "text": ""})
            self._blocks[-1]["text"] += part.text
            yield self._texts.encode(len(self._blocks) - 1, part.text)

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        self._blocks.append(block)
        self._open_type = block["type"]
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Event]:
        """End the open block, if there is one. Reasoning ends with its signature, which is empty."""
        if self._open_type is None:
            return
        if self._open_type == "thinking":
            yield _delta(len(self._blocks) - 1, "signature_delta", signature="")
        self._open_type = None
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _stop_fields(self, delta: CompletionDelta, prompt: PromptState) -> dict[str, Any]:
        """Why the answer ended. An answer that ends with the context has a reason of its own."""
        finish_reason = self._parser.finish_reason(delta.finish_reason)
        if finish_reason == "stop" and isinstance(delta.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop_reason}
        if finish_reason == "length" and prompt.num_output_tokens < self._max_tokens:
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        return {"stop_reason": _STOP_REASONS.get(finish_reason or ""), "stop_sequence": None}


def _delta(index: int, kind: str, **content: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **content}}


def _usage(prompt: PromptState) -> dict[str, int]:
    """Token counts in Anthropic's names. `input_tokens` are those that were computed: without those from the cache."""
    return {
        "input_tokens": len(prompt.token_ids) - prompt.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": prompt.num_cached_tokens,
        "output_tokens": prompt.num_output_tokens,
    }


def _json_object(arguments: str) -> Any:
    """The arguments of a call, JSON text of an object, as an object that can be encoded as strict JSON.

    A model can write numbers that no float holds, and half a surrogate pair, which clients cannot read.
    """
    value = json.loads(arguments, parse_float=_finite, parse_int=_integer, parse_constant=lambda _: None)
    text = json.dumps(value, ensure_ascii=False)
    encodable = text.encode(errors="replace").decode()
    return value if encodable == text else json.loads(encodable)


def _finite(text: str) -> float:
    return min(max(float(text), -sys.float_info.max), sys.float_info.max)


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 1000 else _finite(text)


@router.post("/v1/messages", openapi_extra=openapi_body(MessagesRequest), response_model=None)
async def messages(request: Request, body: Annotated[MessagesRequest, Depends(body_of(MessagesRequest))]) -> Response:
    """Answer a conversation, in Anthropic's API."""
    params, request_id = MessagesParams(body), request.state.request_id

    def builder(model: ServedModel, prompt: str = "") -> ResponseBuilder:
        return MessageBuilder(params, model, request_id, prompt)

    async def prepare(model: ServedModel) -> tuple[list[Prompt], ResponseBuilder]:
        prompt = await asyncio.to_thread(params.prompt, model, request.app.state.ignored_fields)
        return [prompt], builder(model, prompt)

    return await generate_response(request, body.model, params, 1, prepare, builder, _framing(request_id))


@count_router.post("/v1/messages/count_tokens", openapi_extra=openapi_body(CountTokensRequest))
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, Depends(body_of(CountTokensRequest))]
) -> dict[str, int]:
    """Count the tokens of a conversation's prompt."""
    params = MessagesParams(body)
    async with request.app.state.models.lease(body.model) as model:
        prompt = await asyncio.to_thread(params.prompt, model, request.app.state.ignored_fields)
        return {"input_tokens": len((await model.read(prompt)).token_ids)}
