"""Unknown fields of requests: ignored with one warning, unless they would change the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.completions import CompletionRequest
from aethermind.server.openai.embeddings import EmbeddingRequest
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.responses import ResponseRequest
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_EMBEDDINGS, UNSUPPORTED_IN_GENERATION, IgnoredFields

COMPLETION = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
RESPONSE = {"model": "demo", "input": "Hi", "max_output_tokens": 3, "temperature": 0}
EMBEDDING = {"model": "demo", "input": "Hi"}
BODIES: dict[type[StrictModel], dict[str, Any]] = {
    CompletionRequest: COMPLETION,
    ChatRequest: CHAT,
    ResponseRequest: RESPONSE,
    EmbeddingRequest: EMBEDDING,
}

NEUTRAL = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "suffix": "",
    "guided_json": None,
    "top_k": -1,
    "seed": -1,
    "repeat_penalty": 1.0,
    "typical_p": 1,
    "mirostat": 0,
    "functions": [],
    "function_call": "auto",
    "do_sample": True,
    "return_token_ids": False,
    "logit_bias": {},
    "chat_template_kwargs": {},
    "tools": [],
}
"""Values that ask for the default behaviour."""

WOULD_CHANGE = {
    "include_stop_str_in_output": True,
    "best_of": 3,
    "length_penalty": 0.8,
    "use_beam_search": True,
    "guided_decoding_backend": "xgrammar",
    "repeat_penalty": 1.1,
    "n_predict": 12,
    "max_new_tokens": 12,
    "chat_template": "{{ messages }}",
    "enable_thinking": False,
    "functions": [{"name": "f"}],
    "options": {"temperature": 0},
    "truncate_prompt_tokens": 8,
    "previous_response_id": "resp_1",
}
"""Values that would change the answer."""


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """The warnings that the server logs."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("aethermind")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def lenient(open_server: Callable[..., httpx.Client]) -> httpx.Client:
    """A new server, which has logged no warnings yet."""
    return open_server()


def test_an_unknown_field_is_ignored_and_logged_once(lenient: httpx.Client, warnings: list[str]) -> None:
    url = "/v1/chat/completions"
    plain = lenient.post(url, json=CHAT).json()["choices"]
    for _ in range(2):
        answer = lenient.post(url, json={**CHAT, "keep_alive": "5m", "cache_prompt": True, "verbosity": "low"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == plain
    assert [name for name in ("keep_alive", "cache_prompt", "verbosity") if sum(name in one for one in warnings) == 1]
    assert len(warnings) == 3
    assert "--strict-requests" in warnings[0]


def test_an_unknown_field_of_a_message_is_logged_with_its_path(lenient: httpx.Client, warnings: list[str]) -> None:
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part], "cache_control": {"type": "ephemeral"}}, *CHAT["messages"]]
    assert lenient.post("/v1/chat/completions", json={**CHAT, "messages": messages}).status_code == 200
    assert lenient.post("/v1/responses", json={**RESPONSE, "text": {"tone": "dry"}}).status_code == 200
    names = ("'messages.content.cache_control'", "'messages.cache_control'", "'text.tone'")
    assert [any(name in one for one in warnings) for name in names] == [True] * 3


def test_a_misspelt_field_is_logged_with_a_suggestion(lenient: httpx.Client, warnings: list[str]) -> None:
    assert lenient.post("/v1/completions", json={**COMPLETION, "temprature": 0.5}).status_code == 200
    assert "did you mean temperature?" in warnings[0]


def test_the_number_of_logged_names_is_bounded(warnings: list[str]) -> None:
    ignored = IgnoredFields()
    for number in range(1000):
        ignored.warn_once(f"field_{number}" + "x" * 10_000)
    ignored.warn_once("one\nmore")
    assert len(warnings) == 100
    assert max(map(len, warnings)) < 300


def test_a_strict_server_rejects_unknown_fields(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(strict_requests=True)
    for url, body in (("/v1/completions", COMPLETION), ("/v1/embeddings", EMBEDDING)):
        error = http.post(url, json={**body, "keep_alive": "5m"}).json()["error"]
        assert (error["param"], error["code"]) == ("keep_alive", "unsupported_parameter")
    for extra, param in (
        ({"chat_template_kwargs": {"mood": "x"}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
    ):
        assert http.post("/v1/chat/completions", json={**CHAT, **extra}).json()["error"]["param"] == param
    reasoning = {"reasoning": {"effort": "low"}}
    assert http.post("/v1/responses", json={**RESPONSE, **reasoning}).json()["error"]["param"] == "reasoning.effort"
    assert http.post("/v1/chat/completions", json={**CHAT, "best_of": 1, "metadata": {"a": "b"}}).status_code == 200


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest, ResponseRequest])
@pytest.mark.parametrize("name", NEUTRAL)
def test_a_value_that_means_the_default_is_accepted(kind: type[StrictModel], name: str, warnings: list[str]) -> None:
    assert kind.model_validate({**BODIES[kind], name: NEUTRAL[name]}, context=IgnoredFields())
    assert warnings == ([] if name != "spaces_between_special_tokens" else warnings)


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
@pytest.mark.parametrize("name", WOULD_CHANGE)
def test_a_foreign_field_that_would_change_the_answer_is_a_400(kind: type[StrictModel], name: str) -> None:
    with pytest.raises(ApiError) as caught:
        kind.model_validate({**BODIES[kind], name: WOULD_CHANGE[name]}, context=IgnoredFields())
    assert (caught.value.status, caught.value.param) == (400, name)
    assert caught.value.message.startswith(f"{name} is not supported with this value. ")


def test_the_error_of_a_foreign_field_names_the_replacement(http: httpx.Client) -> None:
    error = http.post("/v1/completions", json={**COMPLETION, "regex": "a|b"}).json()["error"]
    assert 'Use structured_outputs, such as {"regex": "…"}.' in error["message"]
    error = http.post("/v1/chat/completions", json={**CHAT, "chat_template": "{{ x }}"}).json()["error"]
    assert "--chat-template FILE" in error["message"]
    for url in ("/v1/completions", "/v1/chat/completions"):
        constraint = {"structured_outputs": {"regx": "a"}}
        body = COMPLETION if url == "/v1/completions" else CHAT
        assert http.post(url, json={**body, **constraint}).json()["error"]["param"] == "structured_outputs.regx"


def test_add_special_tokens_accepts_only_the_behaviour_of_the_endpoint() -> None:
    for kind, is_added in ((CompletionRequest, True), (ChatRequest, False), (ResponseRequest, False)):
        assert kind.model_validate({**BODIES[kind], "add_special_tokens": is_added})
        with pytest.raises(ApiError):
            kind.model_validate({**BODIES[kind], "add_special_tokens": not is_added})


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest, ResponseRequest])
def test_no_field_of_another_endpoint_is_ignored(kind: type[StrictModel]) -> None:
    """A client that sends `max_tokens` to /v1/responses would get an answer of another length."""
    harmless = {"stream", "store", "user", "parallel_tool_calls", "reasoning_effort", "reasoning", "stream_options"}
    harmless |= {"client_metadata"}
    of_others = {name for other in (CompletionRequest, ChatRequest, ResponseRequest) for name in other.model_fields}
    assert of_others - set(kind.model_fields) - harmless <= UNSUPPORTED_IN_GENERATION.keys()


@pytest.mark.parametrize("extra", [{"input_type": "query"}, {"normalize": False}, {"truncate_prompt_tokens": 5}])
def test_a_foreign_field_that_would_change_an_embedding_is_a_400(http: httpx.Client, extra: dict[str, Any]) -> None:
    error = http.post("/v1/embeddings", json={**EMBEDDING, **extra}).json()["error"]
    assert error["param"] in extra
    assert extra.keys() <= UNSUPPORTED_IN_EMBEDDINGS.keys()
    assert http.post("/v1/embeddings", json={**EMBEDDING, "normalize": True, "truncate": "NONE"}).status_code == 200


def test_neutral_values_distinguish_numbers_and_booleans() -> None:
    with pytest.raises(ApiError):
        CompletionRequest.model_validate({**COMPLETION, "best_of": True})
    with pytest.raises(ApiError):
        CompletionRequest.model_validate({**COMPLETION, "early_stopping": 0})


def test_reasoning_of_earlier_messages_has_either_name() -> None:
    said = {"role": "assistant", "content": "Four.", "reasoning": "I ponder.", "reasoning_details": []}
    body = {**CHAT, "messages": [*CHAT["messages"], said]}
    message = ChatRequest.model_validate(body, context=IgnoredFields()).messages[1]
    assert message.for_template()["reasoning"] == "I ponder."
