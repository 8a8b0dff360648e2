"""The request fields that the generation endpoints share, and their conversion to `SamplingParams` and options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams, StructuredOutputs, optional, with_defaults
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_FORMATS, UNSUPPORTED_IN_GENERATION, UnsupportedField

if TYPE_CHECKING:
    from aethermind.server.access import Tenant
    from aethermind.server.served_model import ServedModel

__all__ = [
    "CommonFields",
    "SamplingFields",
    "StreamOptions",
    "StructuredOutputsFields",
    "invalid_arguments_as_400",
    "renamed_fields",
    "sampling_params",
]

MAX_COMPLETIONS = 16
"""Maximum of `n`, the number of completions per prompt."""

_SAMPLING_FIELDS = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
    "allowed_token_ids",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)
"""Fields that are passed to `SamplingParams` under the same name, without conversion."""


class StreamOptions(StrictModel):
    """Options of a stream. Obfuscation, which would pad events to hide their sizes, is not supported."""

    location = "stream_options"
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchemaFormat(StrictModel):
    """A JSON schema with a name."""

    location = "response_format.json_schema"
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The format of the output. OpenAI's clients nest the schema in `json_schema`, llama.cpp's put it beside `type`."""

    location = "response_format"
    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_FORMATS
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def constraint(self) -> StructuredOutputs | None:
        """The constraint on the completion; None for free text. ApiError 400 if its fields contradict each other."""
        nested = None if self.json_schema is None else self.json_schema.schema_
        given = [schema for schema in (nested, self.schema_) if schema is not None]
        if len(given) > 1 or (given and self.type == "text"):
            raise ApiError(
                400,
                "response_format has two schemas, or a schema with type text. Give one schema, or none for text.",
                param="response_format.schema",
            )
        if given:
            return StructuredOutputs(json=given[0])
        if self.type == "json_schema":
            raise ApiError(400, "response_format has no json_schema.", param="response_format.json_schema")
        return StructuredOutputs(json_object=True) if self.type == "json_object" else None


class StructuredOutputsFields(StrictModel):
    """An extension of OpenAI's API: exactly one of six constraints, named as in `SamplingParams`."""

    location = "structured_outputs"
    ignores_unknown = False
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


class CommonFields(StrictModel):
    """The fields of every generation request. None stands for the model's default.

    `service_tier` accepts only the values that match the server's behaviour. `prompt_cache_key` and `metadata` are
    accepted without effect: the prefix cache needs no key, and no completions are stored to which metadata could be
    attached. A seed of -1 is a random seed, as in vLLM and llama.cpp. The fields `guided_…` are
    vLLM's older names of those in `structured_outputs`.
    """

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_GENERATION

    model: str
    temperature: int | float | None = None
    top_p: int | float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    top_k: int | None = None
    min_p: int | float | None = None
    repetition_penalty: int | float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputsFields | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    priority: int | None = None
    deadline_ms: int | float | None = None
    session_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _user_defaults_to_safety_identifier(self) -> Self:
        if self.user is None:
            self.user = self.safety_identifier
        return self

    @model_validator(mode="after")
    def _guided_is_structured_outputs(self) -> Self:
        names = ("json", "regex", "choice", "grammar", "json_object")
        guided = {name: value for name in names if (value := getattr(self, f"guided_{name}")) not in (None, False)}
        if not guided:
            return self
        if self.structured_outputs is not None or len(guided) > 1:
            raise ApiError(
                400, "Give one of structured_outputs and the fields guided_….", param=f"guided_{next(iter(guided))}"
            )
        self.structured_outputs = StructuredOutputsFields.model_validate(guided)
        for name in names:
            setattr(self, f"guided_{name}", None)
        return self

    @field_validator("seed")
    @classmethod
    def _random_if_minus_one(cls, seed: int | None) -> int | None:
        return None if seed == -1 else seed


class SamplingFields(CommonFields):
    """The fields that completions and chats share. They are not stored, so `store` may only be false."""

    store: bool | None = None
    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    stop_token_ids: list[int] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS)] | None = None
    presence_penalty: int | float | None = None
    frequency_penalty: int | float | None = None
    logit_bias: dict[str, int | float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None

    @field_validator("store")
    @classmethod
    def _rejects_storing(cls, store: bool | None) -> bool | None:
        if store:
            raise ApiError(400, "store is not supported: nothing is kept. Set it to false.", param="store")
        return store

    @property
    def num_completions(self) -> int:
        """The number of completions to each prompt."""
        return self.n or 1

    @property
    def is_constrained(self) -> bool:
        """Whether the request constrains the completion (structured output)."""
        format = self.response_format
        return self.structured_outputs is not None or (format is not None and format.type != "text")

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """The scheduling and caching options. ApiError 400 for values out of range or without effect."""
        for name in model.info.ignored_options:
            if getattr(self, name):
                raise ApiError(
                    400,
                    f"{name} has no effect under this server's scheduling policy. Leave it out, or have the server "
                    f"started with --scheduling-policy {name.removesuffix('_ms')}.",
                    param=name,
                )
        visible = () if self.skip_special_tokens is not False else sorted(model.tokenizer.special_token_ids)
        with invalid_arguments_as_400(self):
            return RequestOptions(
                priority=tenant.bounded_priority(self.priority),
                deadline_ms=self.deadline_ms,
                cache_salt=tenant.prefix_cache_salt(self.cache_salt),
                session="" if self.session_id is None else tenant.session_name(self.session_id),
                tenant=tenant.id,
                adapter=model.adapter,
                visible_token_ids=tuple(visible),
            )

    @property
    def requested_max_tokens(self) -> int | None:
        """The request's limit of output tokens per completion; None for the endpoint's default."""
        return self.max_tokens

    @property
    def field_names(self) -> Mapping[str, str]:
        """Maps a parameter of `SamplingParams` to the request field that sets it, if the names differ."""
        return {}

    @property
    def max_tokens_field(self) -> str:
        """The name of the field that sets the limit of output tokens."""
        return "max_tokens"

    @property
    def is_stream(self) -> bool:
        """Whether the completion is streamed. ApiError 400 for `include_usage` without a stream."""
        if self.has_stream_usage and not self.stream:
            raise ApiError(400, "stream_options.include_usage requires stream to be true.", param="stream_options")
        return bool(self.stream)

    @property
    def has_stream_usage(self) -> bool:
        """Whether a stream ends with its token usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_params(
    fields: SamplingFields,
    model: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    default_max_tokens: int | None = None,
    prompt_logprobs: int | None = None,
    constraint: StructuredOutputs | None = None,
) -> SamplingParams:
    """The sampling parameters of a request, completed by the model's defaults. ApiError 400 for values out of range.

    `max_tokens` is the limit of the request, which takes precedence over the model's default, which takes precedence
    over the endpoint's `default_max_tokens`. `constraint` is what the endpoint itself requires of the completion.
    """
    defaults = {"max_tokens": default_max_tokens, **model.sampling_defaults}
    requested = {name: getattr(fields, name) for name in _SAMPLING_FIELDS}
    with invalid_arguments_as_400(fields):
        optional("max_tokens", max_tokens, 1, None, "leave it out for the default")  # the Python API also accepts -1
        requested |= {
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "logit_bias": _parse_logit_bias(fields.logit_bias),
            "structured_outputs": constraint or _constraint(fields),
        }
        params = SamplingParams(**with_defaults(defaults, requested))
    model.check_token_ids(params.stop_token_ids, "stop_token_ids")
    model.check_token_ids(params.allowed_token_ids or (), "allowed_token_ids")
    model.check_token_ids([token_id for token_id, _ in params.logit_bias], "logit_bias")
    return params


@contextmanager
def invalid_arguments_as_400(fields: SamplingFields) -> Iterator[None]:
    """Convert InvalidArgumentError to an ApiError 400 that names the request field."""
    try:
        yield
    except InvalidArgumentError as error:
        param = error.param if error.param in type(fields).model_fields else None
        failure = ApiError(400, str(error), param=param, code="invalid_value")
        for name, field in fields.field_names.items():
            _rename_field(failure, name, field)
        raise failure from None


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """In errors of a chat request, replace the names of its fields by those of the endpoint that it is made from."""
    try:
        yield
    except ApiError as error:
        if (name := names.get(error.param or "")) is not None:
            _rename_field(error, error.param or "", name)
        raise


def _rename_field(error: ApiError, name: str, new: str) -> None:
    """Replace the name of a field by another in an error's message and `param`."""
    error.message = re.sub(rf"\b{re.escape(name)}\b", new, error.message)
    if error.param == name:
        error.param = new


def _parse_logit_bias(given: dict[str, int | float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    if not all(key.isascii() and key.isdecimal() and len(key) < 12 for key in given):
        raise ApiError(
            400, "The keys of logit_bias must be token ids, such as 11.", param="logit_bias", code="invalid_value"
        )
    return {int(key): value for key, value in given.items()}


def _constraint(fields: SamplingFields) -> StructuredOutputs | None:
    structured, format = fields.structured_outputs, fields.response_format
    if structured is not None and format is not None and format.type != "text":
        raise ApiError(400, "Give response_format or structured_outputs, not both.", param="response_format")
    if structured is not None:
        given = structured.model_dump(by_alias=True, exclude_none=True)
        return StructuredOutputs(**given)
    return None if format is None else format.constraint()
