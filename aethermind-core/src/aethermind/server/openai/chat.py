"""`/v1/chat/completions`: the request's schema, the prompt by the chat template, and the whole or streamed answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aethermind.errors import TokenizerError
from aethermind.server.generation import Answer, PromptState, answer_id, usage_of
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.sampling import SamplingFields, naming_fields, sampling_params
from aethermind.server.openai.tools import (
    RequestToolCall,
    RequiredCallParser,
    Tool,
    ToolChoice,
    call_constraint,
    delta_of,
)
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_CHATS, UNSUPPORTED_IN_MESSAGES, UnsupportedField
from aethermind.server.sse import TextEvents
from aethermind.text.answer_parser import AnswerParser, Content, Reasoning, ToolCall
from aethermind.text.chat_prompt import RESERVED_NAMES, WrittenChat, chat_prompt
from aethermind.text.chat_template import names_read, tests_null_content
from aethermind.text.chat_templates import choose_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.engine.requests.output_delta import CompletionDelta
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.openai.unknown_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel
    from aethermind.server.sse import Event
    from aethermind.text.answer_parser import AnswerFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerReader", "ChatAnswer", "ChatMessage", "ChatRequest", "Piece", "token_logprobs"]


class ContentPart(StrictModel):
    """A part of a message's content. Text is the only type supported."""

    location = "messages.content"
    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One message of a conversation.

    Clients return the annotations of an answer's message, which have no effect. `reasoning` is the name of
    `reasoning_content` at OpenRouter and in newer servers.
    """

    location = "messages"
    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_MESSAGES

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[RequestToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: list[Any] | None = None

    def for_template(self, empty: str | None = "", *, keep_json_text: bool = False) -> dict[str, Any]:
        """The message in the format of chat templates, where the role `developer` is `system`.

        `empty` replaces an absent content, and the empty one that some clients send beside tool calls. The arguments of
        calls are objects, or JSON text with `keep_json_text`.
        """
        given = empty if self.content is None or (self.tool_calls and not self.content) else self.content
        content = [part.model_dump() for part in given] if isinstance(given, list) else given
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        for key in ("name", "tool_call_id", "reasoning_content", "reasoning"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        if self.tool_calls:
            message["tool_calls"] = [call.for_template(keep_json_text=keep_json_text) for call in self.tool_calls]
        return message


class ChatRequest(SamplingFields):
    """The body of a request."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_CHATS

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that this answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def requires_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice not in (None, "none", "auto")

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None = None) -> WrittenChat:
        """Render the conversation by the model's chat template.

        ApiError 400 for tools if the template does not read them. Other template variables that it does not read have
        no effect: `ignored` logs them, or they are a 400 if it is None.
        """
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        self._check_effect(model.tokenizer.chat_templates, variables, ignored)
        tools = [tool.model_dump(exclude_none=True) for tool in self.callable_tools]
        return _rendered(self.messages, model, tools, variables)

    def _check_effect(
        self, templates: Mapping[str, str], variables: Mapping[str, Any], ignored: IgnoredFields | None
    ) -> None:
        if not (self.callable_tools or variables):
            return
        try:
            read = names_read(choose_template(templates, None, has_tools=bool(self.callable_tools)))
        except TokenizerError:
            return  # `_rendered` raises the error
        if self.callable_tools and not self.requires_call and "tools" not in read:
            raise ApiError(
                400,
                "tools have no effect: the model's chat template does not read them. Leave them out, or require a call "
                "by tool_choice.",
                param="tools",
            )
        for name in sorted(variables.keys() - read - RESERVED_NAMES):
            field = "chat_template_kwargs" if name in (self.chat_template_kwargs or ()) else name
            if ignored is None:
                raise ApiError(
                    400,
                    f"{field} has no effect: the model's chat template does not look at {name!r:.80}. Leave it out.",
                    param=field,
                )
            ignored.warn_once(f"{field}.{name}" if field != name else name, read)

    @property
    def requested_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def max_tokens_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def field_names(self) -> Mapping[str, str]:
        return {"max_tokens": self.max_tokens_field, "logprobs": "top_logprobs"}

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters. An answer without a limit may fill the context."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.", param="max_tokens")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        with naming_fields(self):
            constraint = call_constraint(self.callable_tools, self.tool_choice)
        if constraint is not None and (self.response_format or self.structured_outputs):
            raise ApiError(
                400, "tool_choice requires a call, and the request asks for another format too.", param="tool_choice"
            )
        return sampling_params(
            self, model, max_tokens=self.requested_max_tokens, logprobs=logprobs, constraint=constraint
        )


def _rendered(
    messages: Sequence[ChatMessage],
    model: ServedModel,
    tools: Sequence[dict[str, Any]],
    variables: dict[str, Any] | None,
) -> WrittenChat:
    """A conversation rendered by the model's chat template with additional template variables."""
    if not messages:
        raise ApiError(400, "messages is empty; a conversation has at least one message.", param="messages")
    templates = model.tokenizer.chat_templates
    try:
        template = choose_template(templates, None, has_tools=bool(tools))
    except TokenizerError:
        others = f"{' or '.join(sorted(templates))}, or " if templates else ""
        raise ApiError(
            400,
            f"The model {model.name} has no chat template for this conversation. Continue a text with /v1/completions, "
            f"or have the server started with --chat-template {others}FILE.",
            code="no_chat_template",
        ) from None
    empty = None if tests_null_content(template) else ""
    render = partial(chat_prompt, model.tokenizer, tools=tools or None, chat_template_kwargs=variables)
    try:
        return render([message.for_template(empty) for message in messages])
    except TokenizerError:
        if not any(message.tool_calls for message in messages):
            raise
        with suppress(TokenizerError):  # templates of DeepSeek's models concatenate arguments as JSON text
            return render([message.for_template(empty, keep_json_text=True) for message in messages])
        raise


Piece = Content | Reasoning | ToolCall


class AnswerReader:
    """Parses one answer to a chat request, as it grows, into content, reasoning and tool calls. Mutable.

    `format` is the output format of the model, and `prompt` may end within an opened reasoning block. A constrained
    answer has no reasoning, because the constraint applies from its first character on.
    """

    def __init__(self, request: ChatRequest, format: AnswerFormat, prompt: str) -> None:
        is_call = request.callable_tools and request.requires_call
        self._parser = RequiredCallParser() if is_call else _answer_parser(request, format, prompt)
        self._max_calls = 1 if request.parallel_tool_calls is False else None
        self._num_calls = 0

    def read(self, text: str, *, is_last: bool) -> list[Piece]:
        """Parse more of the text; returns the pieces that are complete."""
        pieces = []
        for piece in (*self._parser.push(text), *(self._parser.finish() if is_last else ())):
            if isinstance(piece, ToolCall):
                if self._num_calls == self._max_calls:
                    continue
                self._num_calls += 1
            pieces.append(piece)
        return pieces

    def reason(self, finish_reason: str | None) -> str | None:
        """The finish reason in OpenAI's API."""
        return "tool_calls" if finish_reason == "stop" and self._num_calls else finish_reason


def _answer_parser(request: ChatRequest, format: AnswerFormat, prompt: str) -> AnswerParser:
    functions = [tool.function.name for tool in request.callable_tools]
    if not functions:
        format = replace(format, tool_call=None)
    is_thinking = format.is_thinking(prompt) and not request.is_constrained
    return AnswerParser(format, is_thinking=is_thinking, functions=functions)


def token_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None, num_top: int
) -> list[dict[str, Any]] | None:
    """Each token with its log probability and the `num_top` most likely alternatives; None without `logprobs`."""
    if logprobs is None:
        return None
    tokens = []
    for token_id, alternatives in zip(token_ids, logprobs, strict=True):
        top = [
            _token_logprob(tokenizer, other, alternative)
            for other, alternative in alternatives.items()
            if alternative.rank <= num_top
        ]
        tokens.append({**_token_logprob(tokenizer, token_id, alternatives[token_id]), "top_logprobs": top})
    return tokens


def _token_logprob(tokenizer: Tokenizer, token_id: int, logprob: Logprob) -> dict[str, Any]:
    """A token with its bytes, from which clients can join a character that several tokens encode."""
    raw = tokenizer.token_bytes(token_id)
    token_bytes = logprob.decoded_token.encode() if raw is None else raw
    return {"token": logprob.decoded_token, "logprob": logprob.logprob, "bytes": list(token_bytes)}


class ChatAnswer(Answer):
    """The completion object of one request, whole or as chunks."""

    def __init__(self, request: ChatRequest, model: ServedModel, request_id: str, prompt: str) -> None:
        self._tokenizer = model.tokenizer
        self._num_top = request.top_logprobs or 0
        self._has_usage = request.has_stream_usage
        self._head: dict[str, Any] = {"id": answer_id(request_id, "chatcmpl-"), "created": int(time.time())}
        self._head["model"] = model.name
        if self._has_usage:  # all chunks have the field, which is null in all but the last
            self._head["usage"] = None
        self._new_reader = partial(AnswerReader, request, model.answer_format, prompt)
        self._readers: dict[int, AnswerReader] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(index, delta_of(Content(text))))

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [self._whole_choice(completion) for output in outputs for completion in output.outputs]
        states = [PromptState.final(output) for output in outputs]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_of(states)}

    def part(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        if index not in self._readers:
            self._readers[index] = self._new_reader()
            yield self._chunk(index, {"role": "assistant", "content": ""})
        reader = self._readers[index]
        pieces = reader.read(delta.text, is_last=delta.finish_reason is not None)
        logprobs = self._logprobs(delta.token_ids, delta.logprobs)
        for piece in pieces or ([Content("")] if logprobs else []):
            if logprobs is None and isinstance(piece, Content):
                yield self._texts.encode(index, piece.text)
            else:
                yield self._chunk(index, delta_of(piece), logprobs)
            logprobs = None
        if delta.finish_reason is not None:
            yield self._chunk(index, {}, None, reader.reason(delta.finish_reason), delta.stop_reason)

    def end(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        if self._has_usage:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(prompts)}

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
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _whole_choice(self, completion: CompletionOutput) -> dict[str, Any]:
        reader = self._new_reader()
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for piece in reader.read(completion.text, is_last=True):
            for key, value in delta_of(piece).items():
                message[key] = value if message.get(key) is None else message[key] + value
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        for call in message.get("tool_calls", ()):
            del call["index"]  # a field of deltas only
        return {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": reader.reason(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        content = token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)
        return None if content is None else {"content": content, "refusal": None}
