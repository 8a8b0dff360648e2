"""`/v1/chat/completions`: conversations answered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aethermind.errors import TokenizerError
from aethermind.server.framing import TextEvents
from aethermind.server.openai.answers import Answer, TextPart, own_id, usage_of
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.foreign_fields import OF_CHATS, OF_MESSAGES, ForeignField
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.reading import AnswerReader, token_logprobs
from aethermind.server.openai.sampling import SamplingFields, named_fields, sampling_params
from aethermind.server.openai.tools import RecalledCall, Tool, ToolChoice, delta_of, demand_for
from aethermind.text.answer_parser import Content
from aethermind.text.chat_prompt import RESERVED_NAMES, WrittenChat, chat_prompt
from aethermind.text.chat_template import names_read, tells_null
from aethermind.text.chat_templates import choose_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.framing import Event
    from aethermind.server.openai.ignored_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel

__all__ = ["ChatAnswer", "ChatMessage", "ChatRequest"]


class ContentPart(StrictModel):
    """A piece of a message. Text is the only kind so far."""

    place = "messages.content"
    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One turn of a conversation. An answer's annotations come back as they were given, and mean nothing.

    `reasoning` is what OpenRouter and newer servers call `reasoning_content`.
    """

    place = "messages"
    foreign: ClassVar[Mapping[str, ForeignField]] = OF_MESSAGES

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[RecalledCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: list[Any] | None = None

    def plain(self, empty: str | None = "", *, are_arguments_texts: bool = False) -> dict[str, Any]:
        """The message as chat templates take it; a developer is what used to be the system. `empty` is the content of
        one that has none, or an empty one beside calls, which some clients write instead.
        """
        given = empty if self.content is None or (self.tool_calls and not self.content) else self.content
        content = [part.model_dump() for part in given] if isinstance(given, list) else given
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        for key in ("name", "tool_call_id", "reasoning_content", "reasoning"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        if self.tool_calls:
            message["tool_calls"] = [call.plain(are_texts=are_arguments_texts) for call in self.tool_calls]
        return message


class ChatRequest(SamplingFields):
    """The body of a request."""

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_CHATS

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
    def offered(self) -> list[Tool]:
        """The tools that the model may call in this answer."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def is_call_forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice not in (None, "none", "auto")

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None = None) -> WrittenChat:
        """The conversation as the model's template writes it.

        ApiError 400 for tools that the template does not look at. Other names that it does not look at change nothing:
        they go to `ignored`, or are a 400 where that is None.
        """
        names = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            names.setdefault("reasoning_effort", self.reasoning_effort)
        self._check_effect(model.tokenizer.chat_templates, names, ignored)
        tools = [tool.model_dump(exclude_none=True) for tool in self.offered]
        return _written(self.messages, model, tools, names)

    def _check_effect(
        self, templates: Mapping[str, str], names: Mapping[str, Any], ignored: IgnoredFields | None
    ) -> None:
        if not (self.offered or names):
            return
        try:
            read = names_read(choose_template(templates, None, has_tools=bool(self.offered)))
        except TokenizerError:
            return  # there is none for this conversation, which is said where it would be written
        if self.offered and not self.is_call_forced and "tools" not in read:
            raise ApiError(
                400,
                "tools have no effect: the model's chat template tells it of none. Leave them out, or demand a call by "
                "tool_choice.",
                param="tools",
            )
        for name in sorted(names.keys() - read - RESERVED_NAMES):
            field = "chat_template_kwargs" if name in (self.chat_template_kwargs or ()) else name
            if ignored is None:
                raise ApiError(
                    400,
                    f"{field} has no effect: the model's chat template does not look at {name!r:.80}. Leave it out.",
                    param=field,
                )
            ignored.warn_once(f"{field}.{name}" if field != name else name, read)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def length_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def other_names(self) -> Mapping[str, str]:
        return {"max_tokens": self.length_field, "logprobs": "top_logprobs"}

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What to ask of sampling. Without a limit an answer may fill the context."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.", param="max_tokens")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        with named_fields(self):
            demand = demand_for(self.offered, self.tool_choice)
        if demand is not None and (self.response_format or self.structured_outputs):
            raise ApiError(400, "A call is asked for, and another form of answer too.", param="tool_choice")
        return sampling_params(self, model, max_tokens=self.asked_tokens, logprobs=logprobs, demand=demand)


def _written(
    messages: Sequence[ChatMessage],
    model: ServedModel,
    tools: Sequence[dict[str, Any]],
    names: dict[str, Any] | None,
) -> WrittenChat:
    """A conversation as the model's template writes it; `names` are further ones for the template."""
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
    empty = None if tells_null(template) else ""
    write = partial(chat_prompt, model.tokenizer, tools=tools or None, chat_template_kwargs=names)
    try:
        return write([message.plain(empty) for message in messages])
    except TokenizerError:
        if not any(message.tool_calls for message in messages):
            raise
        with suppress(TokenizerError):  # templates of DeepSeek's models put arguments together as texts
            return write([message.plain(empty, are_arguments_texts=True) for message in messages])
        raise


class ChatAnswer(Answer):
    """Objects for the answer to one request, whole or in parts."""

    def __init__(self, request: ChatRequest, model: ServedModel, request_id: str, prompt: str) -> None:
        self._tokenizer = model.tokenizer
        self._num_top = request.top_logprobs or 0
        self._has_usage = request.has_stream_usage
        self._head: dict[str, Any] = {"id": own_id(request_id, "chatcmpl-"), "created": int(time.time())}
        self._head["model"] = model.name
        if self._has_usage:  # every chunk has the field then, and the last one its value
            self._head["usage"] = None
        self._new_reader = partial(AnswerReader, request, model.answer_format, prompt)
        self._readers: dict[int, AnswerReader] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(index, delta_of(Content(text))))

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [self._whole_choice(one) for output in outputs for one in output.outputs]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_of(outputs)}

    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[Event]:
        if part.is_first:
            self._readers[index] = self._new_reader()
            yield self._chunk(index, {"role": "assistant", "content": ""})
        reader = self._readers[index]
        pieces = reader.read(part.text, is_last=part.finish_reason is not None)
        logprobs = self._logprobs(part.token_ids, part.logprobs)
        for piece in pieces or ([Content("")] if logprobs else []):
            if logprobs is None and isinstance(piece, Content):
                yield self._texts.written(index, piece.text)
            else:
                yield self._chunk(index, delta_of(piece), logprobs)
            logprobs = None
        if part.finish_reason is not None:
            yield self._chunk(index, {}, None, reader.reason(part.finish_reason), part.stop_reason)

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[Event]:
        if self._has_usage:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(outputs)}

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

    def _whole_choice(self, one: CompletionOutput) -> dict[str, Any]:
        reader = self._new_reader()
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for piece in reader.read(one.text, is_last=True):
            for key, value in delta_of(piece).items():
                message[key] = value if message.get(key) is None else message[key] + value
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        for call in message.get("tool_calls", ()):
            del call["index"]  # which streams have, so that parts find each other
        return {
            "index": one.index,
            "message": message,
            "logprobs": self._logprobs(one.token_ids, one.logprobs),
            "finish_reason": reader.reason(one.finish_reason),
            "stop_reason": one.stop_reason,
        }

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        content = token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)
        return None if content is None else {"content": content, "refusal": None}
