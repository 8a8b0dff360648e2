"""`/v1/chat/completions`: the request schema, and prompt rendering with the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PrivateAttr

from aethermind.errors import TokenizerError
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.request_fields import SamplingFields, invalid_arguments_as_400, sampling_params
from aethermind.server.openai.tools import (
    RequestToolCall,
    Tool,
    ToolChoice,
    auto_constraint,
    call_constraint,
)
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_CHATS, UNSUPPORTED_IN_MESSAGES, UnsupportedField
from aethermind.text.chat_prompt import RESERVED_NAMES, RenderedChat, chat_prompt, choose_template, template_variables
from aethermind.text.chat_template import tests_null_content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.openai.unknown_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel
    from aethermind.text.answer_format import AnswerFormat
    from aethermind.text.chat_prompt import TemplateOptions

__all__ = ["ChatMessage", "ChatRequest"]


class ContentPart(StrictModel):
    """A part of a message's content. Text is the only type supported."""

    location = "messages.content"
    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One message of a conversation.

    Clients send back the `annotations` of earlier assistant messages; they are ignored. `reasoning` is the name of
    `reasoning_content` in OpenRouter's API and in newer servers.
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

        `empty` replaces missing content, and the empty content that some clients send with tool calls. Tool call
        arguments are parsed to objects, or remain JSON text with `keep_json_text`.
        """
        raw_content = empty if self.content is None or (self.tool_calls and not self.content) else self.content
        content = [part.model_dump() for part in raw_content] if isinstance(raw_content, list) else raw_content
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
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    _rendered: str = PrivateAttr("")
    """The prompt, once it is rendered."""

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that this completion may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def requires_call(self) -> bool:
        """Whether the completion has to be a call."""
        return self.tool_choice not in (None, "none", "auto")

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None = None) -> RenderedChat:
        """Render the conversation by the model's chat template.

        ApiError 400 for tools if the template does not read them. Other template variables that it does not read are
        logged by `ignored`; without `ignored` they are an ApiError 400.
        """
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        self._check_template_reads(model.tokenizer.chat_templates, variables, ignored)
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message and add_generation_prompt exclude each other: the prompt ends with the last "
                "message, or with the beginning of a new one. Leave one out.",
                param="continue_final_message",
            )
        tools = [tool.model_dump(exclude_none=True) for tool in self.callable_tools]
        ends: TemplateOptions = {
            "add_generation_prompt": self.add_generation_prompt is not False,
            "continue_final_message": bool(self.continue_final_message),
        }
        with invalid_arguments_as_400(self):
            self._rendered = rendered = _render_chat(self.messages, model, tools, variables, ends)
        return rendered

    def opens_reasoning(self, format: AnswerFormat, prompt: str) -> bool:
        """Whether an answer begins with reasoning: the prompt, or the message that is continued, opens it."""
        content = self.messages[-1].content if self.continue_final_message and self.messages else None
        if format.reasoning is None or not isinstance(content, str):
            return format.is_thinking(prompt)
        opening, closing = format.reasoning
        return content.lstrip().startswith(opening) and closing not in content

    def _check_template_reads(
        self, templates: Mapping[str, str], variables: Mapping[str, Any], ignored: IgnoredFields | None
    ) -> None:
        if not (self.callable_tools or variables):
            return
        read = template_variables(templates, has_tools=bool(self.callable_tools))
        if read is None:
            return  # `_render_chat` raises the error
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
                    f"{field} has no effect: the model's chat template does not read {name!r:.80}. Leave it out.",
                    param=field,
                )
            ignored.warn_once(f"{field}.{name}" if field != name else name, read)

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        options = super().options(tenant, model)
        visible = {*options.visible_token_ids, *model.visible_token_ids}
        return replace(options, visible_token_ids=tuple(sorted(visible)))

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
        """The sampling parameters. Without a token limit, generation may use the rest of the context window."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.", param="max_tokens")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        with invalid_arguments_as_400(self):
            constraint = call_constraint(self.callable_tools, self.tool_choice)
        if constraint is not None and (self.response_format or self.structured_outputs):
            raise ApiError(
                400, "tool_choice requires a call, and the request asks for another format too.", param="tool_choice"
            )
        if constraint is None and not self._has_other_constraints:
            with invalid_arguments_as_400(self):
                constraint = auto_constraint(
                    self.callable_tools,
                    model.answer_format,
                    is_thinking=self.opens_reasoning(model.answer_format, self._rendered),
                )
        return sampling_params(
            self, model, max_tokens=self.requested_max_tokens, logprobs=logprobs, constraint=constraint
        )

    @property
    def _has_other_constraints(self) -> bool:
        """Whether other fields exclude tokens, among which could be those that a call needs."""
        return self.is_constrained or bool(self.min_tokens or self.bad_words or self.allowed_token_ids is not None)


def _render_chat(
    messages: Sequence[ChatMessage],
    model: ServedModel,
    tools: Sequence[dict[str, Any]],
    variables: dict[str, Any] | None,
    ends: TemplateOptions,
) -> RenderedChat:
    """A conversation rendered by the model's chat template with additional template variables and ends."""
    if not messages:
        raise ApiError(400, "messages is empty; a conversation has at least one message.", param="messages")
    templates = model.tokenizer.chat_templates
    try:
        template = choose_template(templates, None, has_tools=bool(tools))
    except TokenizerError:
        template_names = f"{' or '.join(sorted(templates))}, or " if templates else ""
        raise ApiError(
            400,
            f"The model {model.name} has no chat template for this conversation. Continue a text with /v1/completions, "
            f"or have the server started with --chat-template {template_names}FILE.",
            code="no_chat_template",
        ) from None
    empty = None if tests_null_content(template) else ""
    options: TemplateOptions = {**ends, "tools": tools or None, "chat_template_kwargs": variables}
    render = partial(chat_prompt, model.tokenizer, **options)
    try:
        return render([message.for_template(empty) for message in messages])
    except TokenizerError:
        if not any(message.tool_calls for message in messages):
            raise
        with suppress(TokenizerError):  # templates of DeepSeek's models concatenate arguments as JSON text
            return render([message.for_template(empty, keep_json_text=True) for message in messages])
        with suppress(TokenizerError):
            return render([_with_joined_reasoning(message.for_template(empty), empty) for message in messages])
        raise


def _with_joined_reasoning(message: dict[str, Any], empty: str | None) -> dict[str, Any]:
    """A message with calls whose content is appended to its reasoning: gpt-oss takes one of them."""
    reasoning, content = message.get("reasoning_content") or message.get("reasoning"), message["content"]
    if not (message.get("tool_calls") and reasoning and isinstance(content, str) and content):
        return message
    joined = {**message, "content": empty, "reasoning_content": f"{reasoning}\n{content}"}
    joined.pop("reasoning", None)
    return joined
