"""The fields that say how tokens are chosen, in OpenAI's names and ours, and the SamplingParams they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.checks import optional
from aethermind.sampling.generation_config import with_defaults
from aethermind.sampling.params import SamplingParams, StructuredOutputs
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.foreign_fields import OF_ANSWERS, OF_FORMATS, ForeignField
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.token_ids import check_token_ids

if TYPE_CHECKING:
    from aethermind.server.served_model import ServedModel
    from aethermind.server.tenants import Tenant

__all__ = ["CommonFields", "SamplingFields", "StreamOptions", "named_fields", "rename", "sampling_params"]

MAX_ANSWERS = 16
"""The most answers to one prompt."""

_OWN_NAMES = (
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


class StreamOptions(StrictModel):
    """What a stream tells besides text. The sizes of its events are not hidden, which is what obfuscation would do."""

    place = "stream_options"
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchemaFormat(StrictModel):
    """A JSON schema with the name that OpenAI's clients give it."""

    place = "response_format.json_schema"
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """OpenAI's way to ask for JSON. llama.cpp's clients write the schema beside the type."""

    place = "response_format"
    foreign: ClassVar[Mapping[str, ForeignField]] = OF_FORMATS
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def demand(self) -> StructuredOutputs | None:
        """What it asks of the answer's text; ApiError 400 where its fields contradict each other."""
        nested = None if self.json_schema is None else self.json_schema.schema_
        given = [one for one in (nested, self.schema_) if one is not None]
        if len(given) > 1 or (given and self.type == "text"):
            raise ApiError(400, "response_format.schema is given twice, or for text.", param="response_format.schema")
        if given:
            return StructuredOutputs(json=given[0])
        if self.type == "json_schema":
            raise ApiError(400, "response_format has no json_schema.", param="response_format.json_schema")
        return StructuredOutputs(json_object=True) if self.type == "json_object" else None


class StructuredOutputsFields(StrictModel):
    """Ours: one of five demands on the text of an answer, in the names of `SamplingParams`."""

    place = "structured_outputs"
    takes_unknown = False
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class CommonFields(StrictModel):
    """What every request for an answer may have. None everywhere means: as the model's own settings say.

    Of `store` and `service_tier` the values are known that ask for what is done anyway, and a `prompt_cache_key` asks
    that what begins alike be computed once, as all is. `metadata` describes what is stored, and nothing is. A seed of
    -1 is a random one, as in vLLM and llama.cpp.
    """

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_ANSWERS

    model: str
    temperature: int | float | None = None
    top_p: int | float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    top_k: int | None = None
    min_p: int | float | None = None
    repetition_penalty: int | float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputsFields | None = None
    priority: int | None = None
    deadline_ms: int | float | None = None
    session_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _knows_the_user_by_either_name(self) -> Self:
        if self.user is None:
            self.user = self.safety_identifier
        return self

    @field_validator("seed")
    @classmethod
    def _is_chosen(cls, seed: int | None) -> int | None:
        return None if seed == -1 else seed

    @field_validator("store")
    @classmethod
    def _keeps_nothing(cls, store: bool | None) -> bool | None:
        if store:
            raise ApiError(400, "store is not supported: nothing is kept. Set it to false.", param="store")
        return store


class SamplingFields(CommonFields):
    """What completions and chats have in common."""

    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    stop_token_ids: list[int] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    presence_penalty: int | float | None = None
    frequency_penalty: int | float | None = None
    logit_bias: dict[str, int | float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None

    @property
    def num_answers(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def has_demand(self) -> bool:
        """Whether the answer's text has to look like something."""
        format = self.response_format
        return self.structured_outputs is not None or (format is not None and format.type != "text")

    def options(self, tenant: Tenant, model: ServedModel) -> RequestOptions:
        """What the request asks of the engine besides. ApiError 400 for values out of range or without effect."""
        for name in model.info.ignored_options:
            if getattr(self, name):
                raise ApiError(
                    400,
                    f"{name} has no effect under this server's scheduling policy. Leave it out, or have the server "
                    f"started with --scheduling-policy {name.removesuffix('_ms')}.",
                    param=name,
                )
        with named_fields(self):
            return RequestOptions(
                priority=tenant.urgency(self.priority),
                deadline_ms=self.deadline_ms,
                cache_salt=tenant.salt(self.cache_salt),
                session="" if self.session_id is None else f"{tenant.id}/{self.session_id}",
                tenant=tenant.id,
                adapter=model.adapter,
            )

    @property
    def asked_tokens(self) -> int | None:
        """The most tokens the client wants; None leaves it to the endpoint."""
        return self.max_tokens

    @property
    def other_names(self) -> Mapping[str, str]:
        """What clients call parameters of sampling that have other names here."""
        return {}

    @property
    def length_field(self) -> str:
        """The field that says so, or would."""
        return "max_tokens"

    @property
    def is_stream(self) -> bool:
        """Whether parts are wanted as they come."""
        if self.has_stream_usage and not self.stream:
            raise ApiError(400, "stream_options.include_usage is for streams.", param="stream_options")
        return bool(self.stream)

    @property
    def has_stream_usage(self) -> bool:
        """Whether a stream ends with what it took."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_params(
    fields: SamplingFields,
    model: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    default_max_tokens: int | None = None,
    prompt_logprobs: int | None = None,
    demand: StructuredOutputs | None = None,
) -> SamplingParams:
    """What a request asks of sampling; what it leaves out is as the model says. ApiError 400 for values out of range.

    `max_tokens` is the request's own limit and `default_max_tokens` the endpoint's: the model's comes between them.
    `demand` is what the endpoint itself wants of the answer's text.
    """
    defaults = {"max_tokens": default_max_tokens, **model.sampling_defaults}
    own = {name: getattr(fields, name) for name in _OWN_NAMES}
    with named_fields(fields):
        optional("max_tokens", max_tokens, 1, None, "leave it out for the default")  # -1 has a meaning in Python only
        own |= {
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "logit_bias": _bias(fields.logit_bias),
            "structured_outputs": demand or _structured(fields),
        }
        params = SamplingParams(**with_defaults(defaults, own))
    check_token_ids(params.stop_token_ids, model.vocab_size, "stop_token_ids")
    check_token_ids(params.allowed_token_ids or (), model.vocab_size, "allowed_token_ids")
    check_token_ids([token_id for token_id, _ in params.logit_bias], model.vocab_size, "logit_bias")
    return params


@contextmanager
def named_fields(fields: SamplingFields) -> Iterator[None]:
    """Errors about values become 400s that name the field, the first word of their message, as the client does."""
    try:
        yield
    except InvalidArgumentError as error:
        word, message = str(error).partition(" ")[0], str(error)
        failure = ApiError(400, message, param=word if hasattr(fields, word) else None, code="invalid_value")
        for name, own in fields.other_names.items():
            rename(failure, name, own)
        raise failure from None


def rename(error: ApiError, name: str, own: str) -> None:
    """Have an error speak of the field `name` as `own`."""
    error.message = re.sub(rf"\b{re.escape(name)}\b", own, error.message)
    if error.param == name:
        error.param = own


def _bias(given: dict[str, int | float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    if not all(key.isascii() and key.isdecimal() and len(key) < 12 for key in given):
        raise ApiError(400, "logit_bias has token ids as keys, such as 11.", param="logit_bias", code="invalid_value")
    return {int(key): value for key, value in given.items()}


def _structured(fields: SamplingFields) -> StructuredOutputs | None:
    asked, format = fields.structured_outputs, fields.response_format
    if asked is not None and format is not None and format.type != "text":
        raise ApiError(400, "Give response_format or structured_outputs, not both.", param="response_format")
    if asked is not None:
        given = asked.model_dump(by_alias=True, exclude_none=True)
        return StructuredOutputs(**given)
    return None if format is None else format.demand()
