"""`/v1/messages` and `/v1/messages/count_tokens`: the schemas of requests, and their conversion to a chat request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator

from aethermind.server.anthropic import THREADS_UNSUPPORTED
from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, validation_api_error
from aethermind.server.openai.request_fields import StructuredOutputsFields, renamed_fields
from aethermind.server.openai.tools import ToolName
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_MESSAGES_API, UnsupportedField
from aethermind.text.chat_prompt import THINKING_VARIABLES, template_variables

if TYPE_CHECKING:
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.openai.unknown_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_prompt import RenderedChat

__all__ = ["CountTokensRequest", "MessagesParams", "MessagesRequest"]

_BILLING_HEADER = "x-anthropic-billing-header:"
"""The beginning of a block that Claude Code writes before the system prompt. It is meant for Anthropic's servers, and
differs from request to request, so that no prefix of the prompt could be reused."""


class Block(StrictModel):
    """The base of content blocks. `cache_control` has no effect: every prefix is cached."""

    location = "messages.content"
    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    """Text. Its `citations` are ignored."""

    type: Literal["text"]
    text: str
    citations: Any = None


class MediaBlock(Block):
    """An image or a document, which is an error unless it is a document of plain text."""

    type: Literal["image", "document"]
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    citations: Any = None

    def text(self) -> str:
        """The text of a document; ApiError 400 for images and other documents."""
        data = self.source.get("data")
        if self.type == "image" or self.source.get("type") != "text" or not isinstance(data, str):
            kind = "image" if self.type == "image" else "PDF"
            raise ApiError(
                400,
                f"A message has a block of type {self.type}, and the server reads text only. Send the {kind}'s text.",
                param="messages.content",
                code="unsupported_parameter",
            )
        return "\n".join(part for part in (self.title, self.context, data) if part)


class ToolUseBlock(Block):
    """A tool call by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None


class ThinkingBlock(Block):
    """The model's reasoning. Signatures are not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Reasoning that Anthropic's servers have encrypted, which is ignored."""

    type: Literal["redacted_thinking"]
    data: str


def _block_tag(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return f"[{kind}]"


_Text = Annotated[TextBlock, Tag("[text]")]
_Image = Annotated[MediaBlock, Tag("[image]")]
_Document = Annotated[MediaBlock, Tag("[document]")]

_ResultBlock = Annotated[_Text | _Image | _Document, Discriminator(_block_tag)]


class ToolResultBlock(Block):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_ResultBlock] | None = None
    is_error: bool | None = None

    def text(self) -> str:
        """The result as text. A failure is marked as such, because chat templates have no field for it."""
        text = _joined_text(self.content or "")
        return f"Error: {text}" if self.is_error and "error" not in text[:40].lower() else text


_MessageBlock = Annotated[
    _Text
    | _Image
    | _Document
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")],
    Discriminator(_block_tag),
]
"""A content block. The tags have brackets so that `validation_api_error` can drop them from the paths of fields."""


class InputMessage(StrictModel):
    """One message of the conversation."""

    location = "messages"
    role: Literal["user", "assistant", "system"]
    content: str | list[_MessageBlock]


_FIELD_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""Maps a field of the chat request to the field of this API from which it is set."""

_COPIED_FIELDS = (
    *("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "chat_template_kwargs"),
    *("seed", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"),
    *("priority", "deadline_ms", "session_id", "cache_salt"),
)

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

_EFFORTS = {"xhigh": "high", "max": "high"}
"""Levels of effort that chat templates do not know, and the highest that they know."""


class InputTool(StrictModel):
    """A tool that the model may call; `input_schema` is the JSON schema of its input."""

    location = "tools"
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: Any = None
    defer_loading: Any = None
    allowed_callers: Any = None
    input_examples: Any = None

    @field_validator("type", mode="before")
    @classmethod
    def _rejects_server_tools(cls, kind: Any) -> Any:
        if isinstance(kind, str) and kind != "custom":
            raise ApiError(
                400,
                f"tools has one of type {kind!r:.80}, which Anthropic's servers define. Give each an input_schema.",
                param="tools",
                code="unsupported_parameter",
            )
        return kind


class ToolChoice(StrictModel):
    """Whether the model may, must or must not call a tool, or which one it must call."""

    location = "tool_choice"
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictModel):
    """Whether the model reasons before it answers, for chat templates that read it. The budget has no effect."""

    location = "thinking"
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Any = None


class OutputFormat(StrictModel):
    """The JSON schema of the answer."""

    location = "output_config.format"
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    """The effort of reasoning, for chat templates that read it, and the format of the answer."""

    location = "output_config"
    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class RequestMetadata(StrictModel):
    """`user_id` is only logged."""

    location = "metadata"
    user_id: str | None = None


class CountTokensRequest(StrictModel):
    """A conversation with its tools.

    `cache_control`, `context_management` and `speed` are accepted without effect.
    """

    model: str
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    context_management: Any = None
    speed: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    thread: Any = None

    @field_validator("thread")
    @classmethod
    def _rejects_threads(cls, thread: Any) -> Any:
        if thread is not None:
            raise ApiError(
                400,
                "thread is not supported, because conversations are not stored. Send all messages.",
                param="thread",
                code=THREADS_UNSUPPORTED,
            )
        return thread

    def chat(self) -> ChatRequest:
        """The equivalent chat request. ApiError 400 names fields that are not supported."""
        fields: dict[str, Any] = {
            name: value for name in _COPIED_FIELDS if (value := getattr(self, name, None)) is not None
        }
        fields["messages"] = chat_messages(self.system, self.messages)
        if self.tools:
            fields["tools"] = [_chat_function(tool) for tool in self.tools]
        if self.tool_choice is not None:
            fields |= _chat_tool_choice(self.tool_choice)
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"name": "answer", "schema": self.output_config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.messages and self.messages[-1].role == "assistant":
            _check_continued(fields["messages"][-1])
            fields["continue_final_message"] = True
        fields |= self._generation_fields()
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            raise validation_api_error(error) from None

    def _generation_fields(self) -> dict[str, Any]:
        return {}


class MessagesRequest(CountTokensRequest):
    """The body of a request. The fields from `seed` on are extensions, with the meaning that they have in chats."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_MESSAGES_API

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    top_k: int | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: int | None = None
    min_p: int | float | None = None
    repetition_penalty: int | float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputsFields | None = None
    priority: int | None = None
    deadline_ms: int | float | None = None
    session_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    def _generation_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.stop_sequences:
            fields["stop"] = self.stop_sequences
        if self.structured_outputs is not None:
            fields["structured_outputs"] = self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        if self.metadata is not None:
            fields["user"] = self.metadata.user_id
        return fields


class MessagesParams:
    """The `GenerationParams` of a request: those of its chat request, with this API's field names in errors.

    `max_tokens` is an upper bound: an answer also ends where the context ends, as with Anthropic's models. Claude Code
    asks for 32,000 tokens by default, which would not fit into many contexts.
    """

    num_completions = 1
    requested_max_tokens = None
    max_tokens_field = "max_tokens"

    def __init__(self, request: CountTokensRequest) -> None:
        with renamed_fields(_FIELD_NAMES):
            self.chat = request.chat()
        self._thinking = request.thinking
        self._effort = None if request.output_config is None else request.output_config.effort
        self.max_tokens = self.chat.max_tokens or 0
        self.is_stream = bool(self.chat.stream)
        self.user = self.chat.user

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None) -> RenderedChat:
        """Render the conversation by the model's chat template; see `ChatRequest.prompt`."""
        variables = self._reasoning_variables(model) | (self.chat.chat_template_kwargs or {})
        self.chat = self.chat.model_copy(update={"chat_template_kwargs": variables or None})
        with renamed_fields(_FIELD_NAMES):
            return self.chat.prompt(model, ignored)

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters."""
        with renamed_fields(_FIELD_NAMES):
            return self.chat.sampling(model)

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """The scheduling and caching options."""
        with renamed_fields(_FIELD_NAMES):
            return self.chat.options(tenant, model)

    def _reasoning_variables(self, model: ServedModel) -> dict[str, Any]:
        """The variables of the chat template for `thinking` and `output_config.effort`, those that it reads."""
        variables: dict[str, Any] = {}
        if self._thinking is not None:
            variables |= dict.fromkeys(THINKING_VARIABLES, self._thinking.type != "disabled")
        if self._effort is not None:
            variables["reasoning_effort"] = _EFFORTS.get(self._effort, self._effort)
        if not variables:
            return {}
        # Without a template `ChatRequest.prompt` raises the error.
        read = template_variables(model.tokenizer.chat_templates, has_tools=bool(self.chat.callable_tools)) or ()
        return {name: value for name, value in variables.items() if name in read}


def _chat_function(tool: InputTool) -> dict[str, Any]:
    """A tool in the format of the chat API."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _chat_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    """The fields of the chat API for a choice."""
    fields: dict[str, Any] = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type != "tool":
        return {**fields, "tool_choice": _TOOL_CHOICES[choice.type]}
    if choice.name is None:
        raise ApiError(400, "tool_choice of type tool has no name.", param="tool_choice.name")
    return {**fields, "tool_choice": {"type": "function", "function": {"name": choice.name}}}


def chat_messages(system: str | Sequence[TextBlock] | None, given: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """The messages of the chat request. Consecutive messages of the user, or of the assistant, become one.

    ApiError 400 for blocks that the server cannot read.
    """
    messages: list[dict[str, Any]] = []
    if isinstance(system, str):
        messages.append({"role": "system", "content": system})
    elif system:
        blocks = [block for block in system if not block.text.startswith(_BILLING_HEADER)]
        messages.append({"role": "system", "content": _joined_text(blocks)})
    for message in given:
        for converted in _assistant(message) if message.role == "assistant" else _others(message):
            if messages and messages[-1]["role"] == converted["role"] != "tool":
                _merge(messages[-1], converted)
            else:
                messages.append(converted)
    return messages


def _check_continued(message: Mapping[str, Any]) -> None:
    """ApiError 400 unless a message of the assistant can be continued: it ends with text that is no white space."""
    content = message.get("content")
    if not isinstance(content, str) or not content or message.get("tool_calls"):
        raise ApiError(
            400,
            "The last message is the assistant's and does not end with text, so it cannot be continued. End with a "
            "message of the user.",
            param="messages",
        )
    if content != content.rstrip():
        raise ApiError(400, "The final assistant content cannot end with trailing whitespace.", param="messages")


def _assistant(message: InputMessage) -> Iterator[dict[str, Any]]:
    """One message with the reasoning, the text and the calls of an assistant's message."""
    if isinstance(message.content, str):
        yield {"role": "assistant", "content": message.content}
        return
    converted: dict[str, Any] = {"role": "assistant"}
    for block in message.content:
        if isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
            call = {"id": block.id, "type": "function", "function": function}
            _merge(converted, {"tool_calls": [call]})
        elif isinstance(block, ThinkingBlock):
            _merge(converted, {"reasoning_content": block.thinking})
        elif isinstance(block, TextBlock | MediaBlock):
            _merge(converted, {"content": _text_of(block)})
        elif isinstance(block, ToolResultBlock):
            raise _wrong_role("tool_result", "user")
    yield converted


def _others(message: InputMessage) -> Iterator[dict[str, Any]]:
    """A message for each tool result, and one for the text before, between and after them."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts: list[str] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": message.role, "content": "\n".join(texts)}
                texts = []
            yield {"role": "tool", "content": block.text(), "tool_call_id": block.tool_use_id}
        elif isinstance(block, TextBlock | MediaBlock):
            texts.append(_text_of(block))
        else:
            raise _wrong_role(block.type, "assistant")
    if texts or not message.content:
        yield {"role": message.role, "content": "\n".join(texts)}


def _merge(message: dict[str, Any], other: dict[str, Any]) -> None:
    """Append the texts and calls of `other` to a message."""
    for name, value in other.items():
        if name != "role":
            separator = "\n" if isinstance(value, str) else []
            message[name] = message[name] + separator + value if name in message else value


def _text_of(block: TextBlock | MediaBlock) -> str:
    return block.text if isinstance(block, TextBlock) else block.text()


def _joined_text(content: str | Sequence[TextBlock | MediaBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(_text_of(block) for block in content)


def _wrong_role(kind: str, role: str) -> ApiError:
    return ApiError(400, f"Blocks of type {kind} belong into messages with the role {role}.", param="messages")
