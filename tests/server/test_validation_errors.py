"""Errors of request bodies name the field as clients write it, and the values that it accepts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.completions import CompletionRequest
from aethermind.server.openai.embeddings import EmbeddingRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import validation_api_error
from aethermind.server.openai.responses import ResponseRequest

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "demo", "prompt": "Hi"}
RESPONSE = {"model": "demo", "input": "Hi"}


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (ChatRequest, [], "The request body: Input should be an object."),
        (ChatRequest, {**CHAT, "temperature": "1"}, "temperature: Input should be a valid integer or a valid number."),
        (ChatRequest, {**CHAT, "stop": 5}, "stop: Input should be a valid string or a valid list."),
        (ChatRequest, {**CHAT, "messages": ["Hi"]}, "messages.0: Input should be an object."),
        (ChatRequest, {**CHAT, "response_format": "json"}, "response_format: Input should be an object."),
        (ChatRequest, {**CHAT, "tool_choice": {"type": "function"}}, "tool_choice.function is missing."),
        (
            ChatRequest,
            {**CHAT, "tool_choice": "any"},
            "tool_choice: Input should be 'none', 'auto' or 'required' or an object.",
        ),
        (ChatRequest, {**CHAT, "Tools": []}, "Tools is not supported; leave it out."),
        (CompletionRequest, {**COMPLETION, "prompt": ["x", [1]]}, "prompt.1: Input should be a valid string or"),
        (EmbeddingRequest, {"model": "demo", "input": None}, "input: Input should be a valid string or a valid list."),
        (ResponseRequest, {**RESPONSE, "tool_choice": {"type": "function"}}, "tool_choice.name is missing."),
        (
            ResponseRequest,
            {**RESPONSE, "input": [{"type": "item_reference"}]},
            "input.0: type should be one of 'message', 'function_call', 'function_call_output', 'custom_tool_call', ",
        ),
    ],
)
def test_an_error_names_the_field_and_the_values_it_accepts(kind: type[BaseModel], body: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert validation_api_error(caught.value).message.startswith(says)


@pytest.mark.parametrize(
    ("kind", "body", "path"),
    [
        (ChatRequest, CHAT, ()),
        (ChatRequest, CHAT, ("messages", 0)),
        (CompletionRequest, COMPLETION, ()),
        (ResponseRequest, RESPONSE, ()),
        (EmbeddingRequest, {"model": "demo", "input": "Hi"}, ()),
    ],
)
def test_a_null_in_an_unknown_field_is_ignored(kind: type[BaseModel], body: Any, path: tuple[Any, ...]) -> None:
    """Clients in typed languages send a null for each absent field."""

    def with_field(value: Any) -> Any:
        whole = {**body, "messages": [dict(one) for one in body["messages"]]} if "messages" in body else {**body}
        part = whole
        for step in path:
            part = part[step]
        part["a_field_of_next_year"] = value
        return whole

    assert kind.model_validate(with_field(None)) == kind.model_validate(body)
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(with_field(False))
    assert validation_api_error(caught.value).code == "unsupported_parameter"


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest, ResponseRequest])
def test_values_that_ask_for_the_default_are_accepted(kind: type[BaseModel]) -> None:
    body = {ChatRequest: CHAT, CompletionRequest: COMPLETION, ResponseRequest: RESPONSE}[kind]
    extra = {"store": False, "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "me"}
    extra |= {"stream": True, "stream_options": {"include_obfuscation": False}}
    extra |= {ChatRequest: {"modalities": ["text"]}, ResponseRequest: {"background": False}}.get(kind, {})
    assert kind.model_validate({**body, **extra}).model_dump()["user"] == "me"
    assert kind.model_validate({**body, **extra, "user": "I"}).model_dump()["user"] == "I"
    for other in (
        {"service_tier": "flex"},
        {"stream_options": {"include_obfuscation": True}},
        {"modalities": ["audio"]},
    ):
        with pytest.raises((ValidationError, ApiError)):
            kind.model_validate({**body, "stream": True, **other})


def test_fields_without_effect_are_accepted() -> None:
    assert CompletionRequest.model_validate({**COMPLETION, "best_of": 1, "suffix": ""})
    said = [*CHAT["messages"], {"role": "assistant", "content": "Hi", "annotations": [], "refusal": None}]
    assert ChatRequest.model_validate({**CHAT, "messages": said})
    for stream_options in ({}, {"include_usage": False}, {"include_obfuscation": False}):
        for kind, body in ((ChatRequest, CHAT), (CompletionRequest, COMPLETION)):
            assert not kind.model_validate({**body, "stream_options": stream_options}).is_stream
    with pytest.raises(ApiError, match="requires stream to be true"):
        _ = ChatRequest.model_validate({**CHAT, "stream_options": {"include_usage": True}}).is_stream


def test_a_null_in_a_required_field_is_an_error() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**CHAT, "messages": None})
    assert validation_api_error(caught.value).param == "messages"
