"""Responses of `/v1/chat/completions`: parses output into content, reasoning and tool calls, and builds the JSON."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aethermind.server.generation import PromptState, ResponseBuilder, response_id, token_usage
from aethermind.server.openai.tools import RequiredCallParser, delta_of
from aethermind.server.sse import TextEvents
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import Content, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.engine.requests.output_delta import CompletionDelta
    from aethermind.server.openai.chat import ChatRequest
    from aethermind.server.served_model import ServedModel
    from aethermind.server.sse import Event
    from aethermind.text.answer_format import AnswerFormat
    from aethermind.text.answer_parts import AnswerPart, PartParser
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ChatOutputParser", "ChatResponseBuilder", "token_logprobs"]


class ChatOutputParser:
    """Parses one completion to a chat request, as it grows, into content, reasoning and tool calls. Mutable.

    `format` is the model's output format. `prompt` is needed because it may end inside an open reasoning block. A
    constrained completion has no reasoning, because the constraint applies from its first character on.
    """

    def __init__(self, request: ChatRequest, format: AnswerFormat, prompt: str) -> None:
        is_call = request.callable_tools and request.requires_call
        self._parser: PartParser = RequiredCallParser() if is_call else _output_parser(request, format, prompt)
        self._max_calls = 1 if request.parallel_tool_calls is False else None
        self._num_calls = 0

    def read(self, text: str, *, is_last: bool) -> list[AnswerPart]:
        """Parse more of the text; returns the parts that are complete."""
        parts = []
        for part in (*self._parser.push(text), *(self._parser.finish() if is_last else ())):
            if isinstance(part, ToolCall):
                if self._num_calls == self._max_calls:
                    continue
                self._num_calls += 1
            parts.append(part)
        return parts

    def finish_reason(self, finish_reason: str | None) -> str | None:
        """The finish reason in OpenAI's API."""
        return "tool_calls" if finish_reason == "stop" and self._num_calls else finish_reason


def _output_parser(request: ChatRequest, format: AnswerFormat, prompt: str) -> PartParser:
    functions = {tool.function.name: tool.function.parameters for tool in request.callable_tools}
    if not functions:
        format = replace(format, tool_calls=())
    is_thinking = request.opens_reasoning(format, prompt) and not request.is_constrained
    if not request.continue_final_message:
        return new_parser(format, is_thinking=is_thinking, functions=functions)
    if not is_thinking:  # the content has begun already
        return new_parser(replace(format, reasoning=None, has_bare_calls=False), functions=functions)
    parser = new_parser(format, functions=functions)
    for _ in parser.push(str(request.messages[-1].content)):
        pass  # the client has the beginning of the reasoning
    return parser


def token_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None, num_top: int
) -> list[dict[str, Any]] | None:
    """Each token with its log probability and the `num_top` most likely alternatives; None without `logprobs`."""
    if logprobs is None:
        return None
    tokens = []
    for token_id, alternatives in zip(token_ids, logprobs, strict=True):
        top = [
            _token_logprob(tokenizer, alternative_id, alternative)
            for alternative_id, alternative in alternatives.items()
            if alternative.rank <= num_top
        ]
        tokens.append({**_token_logprob(tokenizer, token_id, alternatives[token_id]), "top_logprobs": top})
    return tokens


def _token_logprob(tokenizer: Tokenizer, token_id: int, logprob: Logprob) -> dict[str, Any]:
    """A token with its bytes, so that clients can reassemble a character that is split across tokens."""
    known_bytes = tokenizer.token_bytes(token_id)
    token_bytes = logprob.decoded_token.encode() if known_bytes is None else known_bytes
    return {"token": logprob.decoded_token, "logprob": logprob.logprob, "bytes": list(token_bytes)}


class ChatResponseBuilder(ResponseBuilder):
    """The response to one request: one `chat.completion` object, or a stream of `chat.completion.chunk`."""

    def __init__(self, request: ChatRequest, model: ServedModel, request_id: str, prompt: str) -> None:
        self._tokenizer = model.tokenizer
        self._num_top = request.top_logprobs or 0
        self._has_usage = request.has_stream_usage
        self._common_fields: dict[str, Any] = {"id": response_id(request_id, "chatcmpl-"), "created": int(time.time())}
        self._common_fields["model"] = model.name
        if self._has_usage:  # all chunks have the field, which is null in all but the last
            self._common_fields["usage"] = None
        self._new_parser = partial(ChatOutputParser, request, model.answer_format, prompt)
        self._parsers: dict[int, ChatOutputParser] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(index, delta_of(Content(text))))

    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [self._full_choice(completion) for output in outputs for completion in output.outputs]
        states = [PromptState.final(output) for output in outputs]
        return {**self._common_fields, "object": "chat.completion", "choices": choices, "usage": token_usage(states)}

    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        if index not in self._parsers:
            self._parsers[index] = self._new_parser()
            yield self._chunk(index, {"role": "assistant", "content": ""})
        parser = self._parsers[index]
        parts = parser.read(delta.text, is_last=delta.finish_reason is not None)
        logprobs = self._logprobs(delta.token_ids, delta.logprobs)
        # Tokens that have no text yet are sent with empty content, because of their logprobs.
        for part in parts or ([Content("")] if logprobs else []):
            if logprobs is None and isinstance(part, Content):
                yield self._texts.encode(index, part.text)
            else:
                yield self._chunk(index, delta_of(part), logprobs)
            logprobs = None
        if delta.finish_reason is not None:
            yield self._chunk(index, {}, None, parser.finish_reason(delta.finish_reason), delta.stop_reason)

    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        if self._has_usage:
            yield {
                **self._common_fields,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": token_usage(prompts),
            }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Any = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return {**self._common_fields, "object": "chat.completion.chunk", "choices": [choice]}

    def _full_choice(self, completion: CompletionOutput) -> dict[str, Any]:
        parser = self._new_parser()
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for part in parser.read(completion.text, is_last=True):
            for key, value in delta_of(part).items():
                message[key] = value if message.get(key) is None else message[key] + value
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        for call in message.get("tool_calls", ()):
            del call["index"]  # a field of deltas only
        return {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": parser.finish_reason(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        content = token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)
        return None if content is None else {"content": content, "refusal": None}
