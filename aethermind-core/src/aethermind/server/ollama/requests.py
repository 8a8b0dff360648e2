"""Requests of Ollama's `/api/chat` and `/api/generate`: their schemas, and their conversion to chat requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ValidationError, ValidationInfo

from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.completions import fill_in_the_middle
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, validation_api_error
from aethermind.server.openai.request_fields import renamed_fields
from aethermind.text.chat_prompt import THINKING_VARIABLES, template_variables

if TYPE_CHECKING:
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.openai.unknown_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel

__all__ = [
    "ChatBody",
    "EmbedBody",
    "GenerateBody",
    "KeepAlive",
    "OldEmbedBody",
    "OllamaParams",
    "Options",
    "has_reasoning",
]

_IGNORED_OPTIONS = frozenset(
    {
        *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap"),
        *("use_mlock", "embedding_only", "num_thread", "num_keep", "tfs_z", "typical_p", "repeat_last_n", "mirostat"),
        *("mirostat_tau", "mirostat_eta", "penalize_newline"),
    }
)
"""Options of Ollama that concern loading, which the server's own flags decide, or that Ollama itself ignores."""

_FIELD_NAMES = {
    "max_completion_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "response_format": "format",
    "response_format.json_schema": "format",
    "response_format.schema": "format",
}
"""Maps a field of the chat request to the field of this API from which it is set."""

_COPIED_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")


def _whole_number(value: Any) -> Any:
    """An integer that a client writes with a fraction of zero, as Ollama accepts it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Integer = Annotated[int, BeforeValidator(_whole_number)]

KeepAlive = str | int | float | None
"""A duration, such as `5m` or seconds. It has an effect with 0 and without a prompt only: the model is unloaded."""


class Options(StrictModel):
    """The sampling parameters. None stands for the model's default, never for Ollama's.

    `num_predict` of 0 or less does not limit the answer. `num_ctx` may be any length up to the served one.
    """

    location = "options"

    temperature: int | float | None = None
    top_k: _Integer | None = None
    top_p: int | float | None = None
    min_p: int | float | None = None
    seed: _Integer | None = None
    stop: str | list[str] | None = None
    num_predict: _Integer | None = None
    num_ctx: _Integer | None = None
    repeat_penalty: int | float | None = None
    presence_penalty: int | float | None = None
    frequency_penalty: int | float | None = None

    @classmethod
    def _is_ignored(cls, name: str, value: Any, info: ValidationInfo) -> bool:
        return name in _IGNORED_OPTIONS or super()._is_ignored(name, value, info)


class _Body(StrictModel):
    """The fields of both requests for generation."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None

    is_chat: ClassVar[bool]
    """Whether the answer is a message, or a text."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is streamed, which is the default."""
        return self.stream is not False

    def chat_fields(self) -> dict[str, Any]:
        """The fields of the equivalent chat request that only this kind of request has."""
        raise NotImplementedError


class CalledFunction(StrictModel):
    """The function of a call; `arguments` is an object, or its JSON text."""

    location = "messages.tool_calls.function"
    name: str
    arguments: dict[str, Any] | str | None = None
    index: int | None = None
    description: str | None = None


class CallInMessage(StrictModel):
    """A tool call in an earlier message of the assistant."""

    location = "messages.tool_calls"
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class MessageBody(StrictModel):
    """One message of a conversation."""

    location = "messages"
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CallInMessage] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(_Body):
    """The body of a request to `/api/chat`. Without messages the model is loaded, or unloaded."""

    is_chat = True

    messages: list[MessageBody] | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.messages

    def chat_fields(self) -> dict[str, Any]:
        if any(message.images for message in self.messages or ()):
            raise _no_images("messages.images")
        fields: dict[str, Any] = {"messages": _chat_messages(self.messages or ())}
        last = fields["messages"][-1] if fields["messages"] else {}
        if last.get("role") == "assistant" and last.get("content") and not last.get("tool_calls"):
            fields["continue_final_message"] = True
        if self.tools:
            fields["tools"] = [{**tool, "type": tool.get("type") or "function"} for tool in self.tools]
        return fields


class GenerateBody(_Body):
    """The body of a request to `/api/generate`. Without a prompt the model is loaded, or unloaded.

    The chat template renders the prompt, unless the request is `raw`, or the model has no template. `context`, which
    earlier versions of Ollama returned, is accepted without effect.
    """

    is_chat = False

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.prompt

    def chat_fields(self) -> dict[str, Any]:
        if self.template:
            raise ApiError(
                400,
                "template is not supported: it is a program. The server takes one when it starts (--chat-template "
                "FILE); for a prompt without a template use raw.",
                param="template",
            )
        if self.images:
            raise _no_images("images")
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, {"role": "user", "content": self.prompt or ""}]}


class EmbedBody(StrictModel):
    """The body of a request to `/api/embed`. A text that exceeds the context is an error if `truncate` is false."""

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: _Integer | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None


class OldEmbedBody(StrictModel):
    """The body of a request to `/api/embeddings`."""

    model: str
    prompt: str | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None


def _no_images(param: str) -> ApiError:
    return ApiError(400, f"{param}: images are not supported by this server. Leave them out.", param=param)


def _chat_messages(messages: Sequence[MessageBody]) -> list[dict[str, Any]]:
    """The messages of the chat request.

    Calls without an id get one by their number, so that an unchanged conversation is always the same prompt. A result
    without an id belongs to the first call that has none yet, of the function `tool_name` if it is given.
    """
    converted = []
    open_calls: list[tuple[str, str]] = []
    num_calls = 0
    for message in messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            fields["reasoning_content"] = message.thinking
        for call in message.tool_calls or ():
            num_calls += 1
            function, call_id = call.function, call.id or f"call{num_calls:05}"
            open_calls.append((function.name, call_id))
            fields.setdefault("tool_calls", []).append(
                {"id": call_id, "function": {"name": function.name, "arguments": _json_text(function.arguments)}}
            )
        if message.role == "tool":
            answered = [call for call in open_calls if message.tool_name in (None, call[0])][:1]
            fields["tool_call_id"] = message.tool_call_id or (answered[0][1] if answered else "call00000")
            open_calls = [call for call in open_calls if call[1] != fields["tool_call_id"]]
            if message.tool_name:
                fields["name"] = message.tool_name
        converted.append(fields)
    return converted


def _json_text(arguments: dict[str, Any] | str | None) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def has_reasoning(model: ServedModel) -> bool:
    """Whether a model's answers may contain reasoning."""
    return model.answer_format.reasoning is not None or model.answer_format.is_harmony


class OllamaParams:
    """The `GenerationParams` of a request: those of the equivalent chat request, with this API's names in errors.

    As in Ollama, an answer that reaches the end of the context ends there, whatever `num_predict` is.
    """

    num_completions = 1
    max_tokens_field = "num_predict"
    requested_max_tokens = None
    user = None

    def __init__(self, body: ChatBody | GenerateBody, ignored: IgnoredFields | None) -> None:
        """ApiError 400 for a request that has no equivalent. `ignored` logs fields without effect."""
        self.body = body
        self.is_stream = body.is_stream
        options = body.options or Options()
        self._num_ctx = options.num_ctx
        self._is_rendered = True
        self._end_token_ids: tuple[int, ...] = ()
        fields = {name: getattr(options, name) for name in _COPIED_OPTIONS}
        fields |= {
            **body.chat_fields(),
            "model": body.model,
            "max_completion_tokens": options.num_predict if (options.num_predict or 0) > 0 else None,
            "repetition_penalty": options.repeat_penalty,
            "response_format": _response_format(body.format),
            "logprobs": body.logprobs,
            "top_logprobs": body.top_logprobs if body.logprobs else None,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            with renamed_fields(_FIELD_NAMES):
                self.chat = ChatRequest.model_validate(given, context=ignored)
        except ValidationError as error:
            raise validation_api_error(error) from None

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None) -> str:
        """The prompt: a `RenderedChat`, or the text itself if it is raw or the model has no chat template."""
        body = self.body
        if isinstance(body, GenerateBody):
            if body.context and ignored is not None:
                ignored.warn_once("context")
            if body.suffix:
                self._is_rendered = False
                return self._filling_in(model, body.prompt or "", body.suffix)
            if body.raw or not model.tokenizer.chat_templates:
                self._is_rendered = False
                return f"{body.system}\n\n{body.prompt}" if body.system and not body.raw else body.prompt or ""
        if body.think is not None:
            self.chat = self._with_thinking(model, body.think)
        try:
            with renamed_fields(_FIELD_NAMES):
                return self.chat.prompt(model, ignored)
        except ApiError as error:
            if error.param == "tools":  # clients look for these words, and ask again without tools
                error.message = f"{model.name} does not support tools: its chat template does not read them."
            raise

    def _filling_in(self, model: ServedModel, prompt: str, suffix: str) -> str:
        try:
            text, self._end_token_ids = fill_in_the_middle(model.tokenizer, prompt, suffix)
        except ApiError as error:
            error.message = f"{model.name} does not support insert. {error.message}"  # the words of Ollama
            raise
        return text

    def _with_thinking(self, model: ServedModel, think: bool | str) -> ChatRequest:
        """The chat request with the variables of the chat template that turn thinking on or off.

        ApiError 400 for a model that does not think, if thinking is requested.
        """
        read = template_variables(model.tokenizer.chat_templates, has_tools=bool(self.chat.tools))
        if read is None:
            return self.chat  # `prompt` raises the error
        variables: dict[str, Any] = {name: bool(think) for name in THINKING_VARIABLES if name in read}
        if isinstance(think, str) and "reasoning_effort" in read:
            variables["reasoning_effort"] = think
        if think and not variables and not has_reasoning(model):
            raise ApiError(400, f"{model.name} does not support thinking; leave think out.", param="think")
        return self.chat.model_copy(update={"chat_template_kwargs": variables})

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters. ApiError 400 for values out of range, and a context longer than the served one."""
        served = model.info.max_model_len
        if self._num_ctx is not None and self._num_ctx > served:
            raise ApiError(
                400,
                f"num_ctx is {self._num_ctx}, and {model.name} is served with contexts of {served} tokens. Lower it, "
                "or have the server started with a larger --max-model-len.",
                param="options.num_ctx",
            )
        if self._end_token_ids:
            self.chat.stop_token_ids = list(self._end_token_ids)
        with renamed_fields(_FIELD_NAMES):
            return self.chat.sampling(model)

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """The scheduling and caching options. The tags of thinking and calls are text for the parser of chats only."""
        options = self.chat.options(tenant, model)
        return options if self._is_rendered else replace(options, visible_token_ids=())


def _response_format(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(format, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": format}}
    if format == "json":
        return {"type": "json_object"}
    if format:
        raise ApiError(400, f"format should be json or a JSON schema, got {format!r:.80}.", param="format")
    return None
