"""`/v1/responses`: one answer to items, without a memory: what was said before is sent again.

A request is read as the chat that it stands for, and the chat's answer is told in items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.foreign_fields import OF_CHATS, ForeignField
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.refusal import refusal_of
from aethermind.server.openai.response_input import InputItem, chat_messages
from aethermind.server.openai.sampling import CommonFields, rename

if TYPE_CHECKING:
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.openai.ignored_fields import IgnoredFields
    from aethermind.server.served_model import ServedModel
    from aethermind.server.tenants import Tenant
    from aethermind.text.chat_prompt import WrittenChat

__all__ = ["LOGPROBS", "ResponseRequest", "ResponseWish"]

LOGPROBS = "message.output_text.logprobs"
"""What `include` may ask for."""

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
    "response_format.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of a chat by what they are called here."""

_SAME_NAMES = (*CommonFields.model_fields, "top_logprobs", "parallel_tool_calls", "chat_template_kwargs")


class FunctionTool(StrictModel):
    """A function that the model may call."""

    place = "tools"
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(StrictModel):
    """The function to call."""

    place = "tool_choice"
    type: Literal["function"]
    name: str


class TextFormat(StrictModel):
    """What the answer's text has to look like."""

    place = "text.format"
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(StrictModel):
    """Options of the answer's text."""

    place = "text"
    format: TextFormat | None = None


class ResponseStreamOptions(StrictModel):
    """Nothing is hidden in the sizes of events."""

    place = "stream_options"
    include_obfuscation: Literal[False] | None = None


class ReasoningOptions(StrictModel):
    """How much the model should think, for templates that look at it. What it thinks is always told whole."""

    place = "reasoning"
    effort: str | None = None


class ResponseRequest(CommonFields):
    """The body of a request."""

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_CHATS

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    stream_options: ResponseStreamOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """The chat that it stands for. ApiError 400 names what is not supported."""
        fields = {name: value for name in _SAME_NAMES if (value := getattr(self, name)) is not None}
        fields["messages"] = chat_messages(self.instructions, self.input)
        fields["max_completion_tokens"] = self.max_output_tokens
        fields["logprobs"] = LOGPROBS in (self.include or ()) or None
        if self.top_logprobs and not fields["logprobs"]:
            raise ApiError(400, f"top_logprobs needs {LOGPROBS} in include.", param="top_logprobs")
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        if self.tools is not None:
            fields["tools"] = [_nested(tool) for tool in self.tools]
        choice = self.tool_choice
        fields["tool_choice"] = _nested(choice) if isinstance(choice, FunctionChoice) else choice
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = _chat_format(self.text.format)
        if self.structured_outputs is not None:
            fields["structured_outputs"] = self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            raise refusal_of(error) from None


class ResponseWish:
    """What `answer_request` asks of a body: the chat's answers, with errors about it in the names used here."""

    num_answers = 1
    length_field = "max_output_tokens"

    def __init__(self, request: ResponseRequest) -> None:
        with _own_names():
            self.chat = request.chat()
        self.asked_tokens = self.chat.asked_tokens
        self.is_stream = bool(request.stream)
        self.user = request.user

    def prompt(self, model: ServedModel, ignored: IgnoredFields | None) -> WrittenChat:
        """The conversation as the model's template writes it; see `ChatRequest.prompt`."""
        with _own_names():
            return self.chat.prompt(model, ignored)

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What it asks of sampling."""
        with _own_names():
            return self.chat.sampling(model)

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """What it asks of the scheduler."""
        with _own_names():
            return self.chat.options(tenant, model)


@contextmanager
def _own_names() -> Iterator[None]:
    """Errors about fields of the chat name those of the request that they come from."""
    try:
        yield
    except ApiError as error:
        if error.param in _NAMES:
            rename(error, error.param, _NAMES[error.param])
        raise


def _nested(function: FunctionTool | FunctionChoice) -> dict[str, Any]:
    """A function as chats have it."""
    return {"type": "function", "function": function.model_dump(exclude_none=True, exclude={"type"})}


def _chat_format(format: TextFormat) -> dict[str, Any]:
    if format.type != "json_schema" and format.schema_ is None:
        return {"type": format.type}
    if format.schema_ is None:
        raise ApiError(400, "text.format has no schema.", param="text.format.schema")
    schema = {"name": format.name or "answer", "schema": format.schema_, "strict": format.strict}
    return {"type": format.type, "json_schema": schema}
