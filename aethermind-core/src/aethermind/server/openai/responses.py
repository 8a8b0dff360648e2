"""`/v1/responses`: the request's schema, and its conversion to a chat request.

A request contains the whole conversation as a list of input items, or continues a stored response's conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationError

from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, validation_api_error
from aethermind.server.openai.request_fields import CommonFields, renamed_fields
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_CHATS, UnsupportedField

if TYPE_CHECKING:
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.access import Tenant
    from aethermind.server.openai.unknown_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel
    from aethermind.text.chat_prompt import RenderedChat

__all__ = ["CallTarget", "InputItem", "LOGPROBS", "ResponseGenerationParams", "ResponseRequest", "chat_messages"]

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that has an effect."""

_FIELD_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
    "response_format.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
}
"""Maps a field of the chat request to the field of this endpoint from which it is set."""

_COPIED_FIELDS = (*CommonFields.model_fields, "top_logprobs", "parallel_tool_calls", "chat_template_kwargs")


_Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(StrictModel):
    """A text part of a message. Clients may send back a part of an earlier response unchanged."""

    location = "input.content"
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class _Item(StrictModel):
    """An item of the conversation. Its `id` and `status`, which an item of a response has, are ignored."""

    location = "input"
    id: str | None = None
    status: _Status | None = None


class MessageItem(_Item):
    """A message. Its `phase`, which a completion's message has, is ignored."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputTextPart]
    phase: str | None = None


class FunctionCallItem(_Item):
    """A function call by the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCallItem(_Item):
    """A call of a custom tool by the model."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class FunctionCallOutputItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    name: str | None = None
    output: str | list[InputTextPart]


class ReasoningPart(StrictModel):
    """A text part of the model's reasoning."""

    location = "input.content"
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    """The model's reasoning before the next item."""

    type: Literal["reasoning"]
    content: list[ReasoningPart] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None


def _item_tag(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return f"[{kind}]"


InputItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[function_call_output]")]
    | Annotated[CustomToolCallItem, Tag("[custom_tool_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[custom_tool_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    Discriminator(_item_tag),
]
"""An input item. The tags have brackets so that `validation_api_error` can drop them from the paths of fields."""


class FunctionTool(StrictModel):
    """A function that the model may call."""

    location = "tools"
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Any = None
    output_schema: Any = None
    allowed_callers: Any = None


class CustomTool(StrictModel):
    """A tool whose input is text. The model sees a function with the parameter `input`; a grammar is not enforced."""

    location = "tools"
    type: Literal["custom"]
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None
    defer_loading: Any = None
    allowed_callers: Any = None


_FunctionTool = Annotated[FunctionTool, Tag("[function]")]
_CustomTool = Annotated[CustomTool, Tag("[custom]")]


class NamespaceTool(StrictModel):
    """Tools under a common name. The model sees each as `NAMESPACE__NAME`."""

    location = "tools"
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[Annotated[_FunctionTool | _CustomTool, Discriminator(_item_tag)]]


class HostedTool(StrictModel):
    """A tool of OpenAI's servers that Codex offers with every request. The model does not see it."""

    location = "tools"
    model_config = ConfigDict(extra="allow")
    type: Literal["web_search", "web_search_preview", "image_generation"]


_Tool = Annotated[
    _FunctionTool
    | _CustomTool
    | Annotated[NamespaceTool, Tag("[namespace]")]
    | Annotated[HostedTool, Tag("[web_search]")]
    | Annotated[HostedTool, Tag("[web_search_preview]")]
    | Annotated[HostedTool, Tag("[image_generation]")],
    Discriminator(_item_tag),
]


class CallTarget(NamedTuple):
    """The tool of the request that a function of the chat request stands for."""

    tool: FunctionTool | CustomTool
    namespace: str | None = None

    @property
    def function_name(self) -> str:
        """The name that the model sees."""
        return _function_name(self.tool.name, self.namespace)


class FunctionChoice(StrictModel):
    """The tool that the model must call."""

    location = "tool_choice"
    type: Literal["function", "custom"]
    name: str


class TextFormat(StrictModel):
    """The format of the completion's text."""

    location = "text.format"
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(StrictModel):
    """Options of the completion's text."""

    location = "text"
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseStreamOptions(StrictModel):
    """Options of a stream. Obfuscation is not supported."""

    location = "stream_options"
    include_obfuscation: Literal[False] | None = None


class ReasoningOptions(StrictModel):
    """The reasoning effort, for chat templates that read it. The full reasoning is always returned, never a summary."""

    location = "reasoning"
    effort: str | None = None
    summary: str | None = None


class ResponseRequest(CommonFields):
    """The body of a request. `reasoning.encrypted_content`, a verbosity and `client_metadata` have no effect."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_CHATS

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    client_metadata: dict[str, Any] | None = None
    truncation: Literal["disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    stream_options: ResponseStreamOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def call_targets(self) -> Iterator[CallTarget]:
        """The tools that the model can call."""
        for tool in self.tools or ():
            if isinstance(tool, NamespaceTool):
                yield from (CallTarget(inner, tool.name) for inner in tool.tools)
            elif not isinstance(tool, HostedTool):
                yield CallTarget(tool)

    def chat(self) -> ChatRequest:
        """The equivalent chat request. ApiError 400 names fields that are not supported."""
        fields = {name: value for name in _COPIED_FIELDS if (value := getattr(self, name)) is not None}
        fields["messages"] = chat_messages(self.instructions, self.input)
        fields["max_completion_tokens"] = self.max_output_tokens
        fields["logprobs"] = LOGPROBS in (self.include or ()) or None
        if self.top_logprobs and not fields["logprobs"]:
            raise ApiError(400, f"top_logprobs needs {LOGPROBS} in include.", param="top_logprobs")
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        if self.tools is not None:
            fields["tools"] = [_chat_function(target) for target in self.call_targets()]
        choice = self.tool_choice
        if isinstance(choice, FunctionChoice):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            fields["tool_choice"] = choice
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = _chat_format(self.text.format)
        if self.structured_outputs is not None:
            fields["structured_outputs"] = self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            raise validation_api_error(error) from None


class ResponseGenerationParams:
    """The `GenerationParams` of a response: those of its chat request, with this endpoint's field names in errors."""

    num_completions = 1
    max_tokens_field = "max_output_tokens"

    def __init__(self, request: ResponseRequest) -> None:
        with renamed_fields(_FIELD_NAMES):
            self.chat = request.chat()
        self.requested_max_tokens = self.chat.requested_max_tokens
        self.is_stream = bool(request.stream)
        self.user = request.user

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None) -> RenderedChat:
        """Render the conversation by the model's chat template; see `ChatRequest.prompt`."""
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


_INPUT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of the function for a custom tool."""


def _function_name(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def _chat_function(target: CallTarget) -> dict[str, Any]:
    """Return a tool as a function in the format of the chat API."""
    tool = target.tool
    function: dict[str, Any] = {"name": target.function_name, "description": tool.description}
    if isinstance(tool, FunctionTool):
        function |= {"parameters": tool.parameters, "strict": tool.strict}
    else:
        function["parameters"] = _INPUT_SCHEMA
        if tool.format is not None and tool.format.get("type") == "grammar":
            syntax = f"The input follows this grammar ({tool.format.get('syntax')}):\n{tool.format.get('definition')}"
            function["description"] = "\n\n".join(filter(None, (tool.description, syntax)))
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _chat_format(format: TextFormat) -> dict[str, Any]:
    if format.type != "json_schema" and format.schema_ is None:
        return {"type": format.type}
    if format.schema_ is None:
        raise ApiError(400, "text.format has no schema.", param="text.format.schema")
    schema = {"name": format.name or "answer", "schema": format.schema_, "strict": format.strict}
    return {"type": format.type, "json_schema": schema}


def chat_messages(instructions: str | None, given: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages of the chat request.

    Reasoning, text and calls that follow each other become one assistant message.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given:
        if isinstance(item, FunctionCallOutputItem):
            messages.append({"role": "tool", "content": _joined_text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, FunctionCallItem | CustomToolCallItem):
            arguments = (
                item.arguments
                if isinstance(item, FunctionCallItem)
                else json.dumps({"input": item.input}, ensure_ascii=False)
            )
            function = {"name": _function_name(item.name, item.namespace), "arguments": arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            _assistant_message(messages, "tool_calls").setdefault("tool_calls", []).append(call)
        elif isinstance(item, ReasoningItem):
            reasoning = "".join(part.text for part in item.content or ())
            messages.append({"role": "assistant", "reasoning_content": reasoning})
        elif item.role == "assistant":
            _assistant_message(messages, "content")["content"] = _joined_text(item.content)
        else:
            messages.append({"role": item.role, "content": _joined_text(item.content)})
    return messages


def _assistant_message(messages: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """The assistant's message that gets `key`: the last message if it can still take it, otherwise a new one.

    A message with text or calls can get further calls, but no further text.
    """
    last = messages[-1] if messages else {}
    is_open = last.get("role") == "assistant" and (key == "tool_calls" or not {"content", "tool_calls"} & set(last))
    if not is_open:
        messages.append({"role": "assistant"})
    return messages[-1]


def _joined_text(content: str | Sequence[InputTextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
